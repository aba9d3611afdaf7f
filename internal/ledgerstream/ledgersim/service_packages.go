package ledgersim

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type packageManagementService struct {
	admin.UnimplementedPackageManagementServiceServer
	sim *Sim
}

func (s packageManagementService) UploadDarFile(ctx context.Context, req *admin.UploadDarFileRequest) (*admin.UploadDarFileResponse, error) {
	vet := req.GetVettingChange() != admin.UploadDarFileRequest_VETTING_CHANGE_DONT_VET_ANY_PACKAGES
	if r := s.upload(callerOf(ctx), req.GetDarFile(), vet, true); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.UploadDarFileResponse{}, nil
}

func (s packageManagementService) ValidateDarFile(ctx context.Context, req *admin.ValidateDarFileRequest) (*admin.ValidateDarFileResponse, error) {
	if r := s.upload(callerOf(ctx), req.GetDarFile(), true, false); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.ValidateDarFileResponse{}, nil
}

// upload takes a DAR's packages in by name; with keep false it only checks them.
func (s packageManagementService) upload(c *caller, dar []byte, vet, keep bool) *rejection {
	if r := c.mayAdminister(); r != nil {
		return r
	}
	packages, err := ReadDAR(dar)
	if err != nil {
		r := reject(invalidArgument, "INVALID_DAR", "Dar file is corrupt").with("entries", "List()").with("throwable", err.Error())
		r.indefinite = true
		return r
	}
	var r *rejection
	s.sim.change(func(l *state, _ time.Time) {
		for _, p := range packages {
			if vet {
				if r = l.checkUpgrade(p); r != nil {
					if keep {
						r.with("action", "package-vetting")
					}
					return
				}
			}
		}
		if !keep {
			return
		}
		for _, p := range packages {
			l.packages.add(p, vet)
		}
	})
	return r
}

// checkUpgrade refuses a package that is no valid upgrade of one of its name.
func (l *state) checkUpgrade(p Package) *rejection {
	if known, ok := l.packages.byID[p.ID]; ok && known.vetted {
		return nil
	}
	young := definePackage(p, true)
	for _, old := range l.packages.named(p.Name) {
		if !old.vetted || old.ID == p.ID || compareVersions(old.Version, p.Version) > 0 {
			continue
		}
		if fault := upgradeFault(old, young); fault != "" {
			describe := func(p Package) string { return fmt.Sprintf("%s (%s v%s)", p.ID, p.Name, p.Version) }
			r := reject(invalidArgument, "NOT_VALID_UPGRADE_PACKAGE", "Upgrade checks indicate that %s cannot be an upgrade of %s. Reason: %s", describe(p), describe(old.Package), fault).
				with("newPackage", describe(p)).with("oldPackage", describe(old.Package)).with("upgradeError", fault)
			r.indefinite = true
			return r
		}
	}
	return nil
}

func (s packageManagementService) ListKnownPackages(context.Context, *admin.ListKnownPackagesRequest) (*admin.ListKnownPackagesResponse, error) {
	out := &admin.ListKnownPackagesResponse{}
	s.sim.read(func(l *state) {
		for _, p := range l.packages.list() {
			out.PackageDetails = append(out.PackageDetails, &admin.PackageDetails{
				PackageId: p.ID, PackageSize: 1, KnownSince: timestamppb.New(time.Unix(0, 0)), Name: p.Name, Version: p.Version,
			})
		}
	})
	return out, nil
}

type packageService struct {
	v2.UnimplementedPackageServiceServer
	sim *Sim
}

func (s packageService) ListPackages(context.Context, *v2.ListPackagesRequest) (*v2.ListPackagesResponse, error) {
	out := &v2.ListPackagesResponse{}
	s.sim.read(func(l *state) {
		for _, p := range l.packages.list() {
			out.PackageIds = append(out.PackageIds, p.ID)
		}
	})
	return out, nil
}

func (s packageService) GetPackageStatus(_ context.Context, req *v2.GetPackageStatusRequest) (*v2.GetPackageStatusResponse, error) {
	out := &v2.GetPackageStatusResponse{}
	s.sim.read(func(l *state) {
		if l.packages.byID[req.GetPackageId()] != nil {
			out.PackageStatus = v2.PackageStatus_PACKAGE_STATUS_REGISTERED
		}
	})
	return out, nil
}

// The form of a DAR: a zip whose manifest names the main package's file; a package's file is named by its name, version and id.
const (
	manifestName = "META-INF/MANIFEST.MF"
	mainDalf     = "Main-Dalf"
	dalfs        = "Dalfs"
	maxManifest  = 1 << 20
)

// ReadDAR reads which packages a DAR holds, from its manifest alone: those of the model and the main one, whatever that is.
func ReadDAR(dar []byte) ([]Package, error) {
	archive, err := zip.NewReader(bytes.NewReader(dar), int64(len(dar)))
	if err != nil {
		return nil, fmt.Errorf("read DAR: %w", err)
	}
	manifest, err := readManifest(archive)
	if err != nil {
		return nil, err
	}
	main, ok := packageOfFile(manifest[mainDalf])
	if !ok {
		return nil, fmt.Errorf("read DAR: %s %q does not name a package", mainDalf, manifest[mainDalf])
	}
	packages := []Package{main}
	for file := range strings.SplitSeq(manifest[dalfs], ",") {
		p, ok := packageOfFile(strings.TrimSpace(file))
		if ok && p != main && (p.Name == wormholeCore || p.Name == exampleIntegrator) {
			packages = append(packages, p)
		}
	}
	return packages, nil
}

func readManifest(archive *zip.Reader) (map[string]string, error) {
	file, err := archive.Open(manifestName)
	if err != nil {
		return nil, fmt.Errorf("read DAR: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxManifest))
	if err != nil {
		return nil, fmt.Errorf("read DAR: %s: %w", manifestName, err)
	}
	// A line that begins with a blank goes on from the one before.
	text := strings.ReplaceAll(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n ", "")
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			out[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return out, nil
}

// packageOfFile reads "name-version-id.dalf", in any folder. Some tools name dependencies by their id alone; of those the known
// ones are found.
func packageOfFile(file string) (Package, bool) {
	base, ok := strings.CutSuffix(path.Base(file), ".dalf")
	if !ok {
		return Package{}, false
	}
	for _, known := range []Package{WormholeCore010, WormholeCore020, WormholeCore040, Integrator010, wormholeCoreLF22, integratorLF22} {
		if base == known.ID {
			return known, true
		}
	}
	rest, id, ok := cutLast(base)
	if !ok || len(id) != 64 {
		return Package{}, false
	}
	name, version, ok := cutLast(rest)
	if !ok {
		return Package{}, false
	}
	return Package{ID: id, Name: name, Version: version}, true
}

func cutLast(s string) (before, after string, ok bool) {
	at := strings.LastIndexByte(s, '-')
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+1:], true
}

// DAR makes a file that UploadDarFile takes for the packages, the first being its main one. It has a manifest and no code: a real
// participant refuses it.
func DAR(packages ...Package) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	var files []string
	for _, p := range packages {
		files = append(files, fmt.Sprintf("%s-%s-%s.dalf", p.Name, p.Version, p.ID))
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("make DAR: no packages")
	}
	manifest, err := archive.Create(manifestName)
	if err != nil {
		return nil, fmt.Errorf("make DAR: %w", err)
	}
	if _, err := fmt.Fprintf(manifest, "Manifest-Version: 1.0\nMain-Dalf: %s\nDalfs: %s\nFormat: daml-lf\n", files[0], strings.Join(files, ", ")); err != nil {
		return nil, fmt.Errorf("make DAR: %w", err)
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("make DAR: %w", err)
	}
	return out.Bytes(), nil
}

// cutParty splits a party's id into its name and its fingerprint.
func cutParty(id string) (name, fingerprint string, ok bool) { return strings.Cut(id, "::") }

// UpdateVettedPackages vets and unvets. Its answer is empty: the past and new states that a participant tells are left out.
func (s packageManagementService) UpdateVettedPackages(ctx context.Context, req *admin.UpdateVettedPackagesRequest) (*admin.UpdateVettedPackagesResponse, error) {
	if r := callerOf(ctx).mayAdminister(); r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	force := slices.Contains(req.GetUpdateVettedPackagesForceFlags(),
		admin.UpdateVettedPackagesForceFlag_UPDATE_VETTED_PACKAGES_FORCE_FLAG_ALLOW_VET_INCOMPATIBLE_UPGRADES)
	var r *rejection
	s.sim.change(func(l *state, _ time.Time) {
		for _, change := range req.GetChanges() {
			for _, p := range l.packages.referred(change.GetVet().GetPackages()) {
				if !force {
					if r = l.checkUpgrade(p.Package); r != nil {
						return
					}
				}
				p.vetted = true
			}
			for _, p := range l.packages.referred(change.GetUnvet().GetPackages()) {
				p.vetted = false
			}
		}
	})
	if r != nil {
		return nil, s.sim.asStatus(r, nil)
	}
	return &admin.UpdateVettedPackagesResponse{}, nil
}

// referred are the packages that the references name.
func (s *packageStore) referred(refs []*admin.VettedPackagesRef) []*pkg {
	var out []*pkg
	for _, p := range s.list() {
		if slices.ContainsFunc(refs, func(ref *admin.VettedPackagesRef) bool {
			return (ref.GetPackageId() == "" || ref.GetPackageId() == p.ID) && (ref.GetPackageName() == "" || ref.GetPackageName() == p.Name) &&
				(ref.GetPackageVersion() == "" || ref.GetPackageVersion() == p.Version)
		}) {
			out = append(out, p)
		}
	}
	return out
}
