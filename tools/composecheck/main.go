// Command composecheck reads a compose file as Docker Compose does: it interpolates variables, merges, holds the file to the
// compose specification's schema and checks what refers to what. It does so for no profile and for each, and prints the services of each.
// It needs no Docker and starts nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: composecheck docker-compose.yml")
		os.Exit(2)
	}
	if err := check(context.Background(), os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "composecheck:", err)
		os.Exit(1)
	}
}

// check loads the file for every set of profiles that somebody would give.
func check(ctx context.Context, path string, out io.Writer) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	all, err := load(ctx, path, "*")
	if err != nil {
		return fmt.Errorf("%s with all profiles: %w", path, err)
	}
	profiles := map[string]bool{"": true}
	for _, service := range all.AllServices() {
		for _, p := range service.Profiles {
			profiles[p] = true
		}
	}
	for _, profile := range slices.Sorted(maps.Keys(profiles)) {
		project, err := load(ctx, path, profile)
		if err != nil {
			return fmt.Errorf("%s with profile %q: %w", path, profile, err)
		}
		names := project.ServiceNames()
		slices.Sort(names)
		if err := ours(project); err != nil {
			return fmt.Errorf("%s with profile %q: %w", path, profile, err)
		}
		fmt.Fprintf(out, "profile %-16q %s\n", profile, strings.Join(names, " "))
	}
	return nil
}

// load reads the file without any variable of the environment, so that defaults are what is checked.
func load(ctx context.Context, path, profile string) (*types.Project, error) {
	return loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: types.Mapping{},
	}, func(o *loader.Options) {
		o.SetProjectName("composecheck", false)
		if profile != "" {
			o.Profiles = []string{profile}
		}
	})
}

// ours reports what breaks this repository's own rules: nothing is published beyond loopback, and every image has a version.
func ours(project *types.Project) error {
	var faults []error
	for name, service := range project.Services {
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				faults = append(faults, fmt.Errorf("%s publishes port %s on %q, not on loopback alone", name, port.Published, port.HostIP))
			}
		}
		if _, tag, ok := strings.Cut(service.Image, ":"); !ok || tag == "latest" {
			faults = append(faults, fmt.Errorf("%s has the image %s, whose version is not pinned", name, service.Image))
		}
	}
	return errors.Join(faults...)
}
