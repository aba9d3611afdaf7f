package daml

import (
	"embed"
	"fmt"
	"slices"
)

// The names of the two packages.
const (
	WormholeCorePackage      = "wormhole-core"
	ExampleIntegratorPackage = "example-integrator"
)

// The versions of Daml-LF for which there are builds. LF 2.3 needs a synchronizer of protocol version 35, which is what a new one
// has; one of version 34 refuses it in transactions, and takes LF 2.2. The two builds of a package have the same name and
// version, so that a participant gets one of them, not both.
const (
	LF23 = "2.3"
	LF22 = "2.2"

	// DefaultLF is what WormholeCore and ExampleIntegrator give.
	DefaultLF = LF23
)

//go:embed lf/*.dar lf/lf2.2/*.dar
var files embed.FS

// DAR is one archive in this package.
type DAR struct {
	// Name and Version are the main package's.
	Name, Version string
	// LF is the version of Daml-LF: LF23 or LF22.
	LF string
	// PackageID is the main package's id: 64 hex digits.
	PackageID string

	path string
}

var builds = []DAR{
	{WormholeCorePackage, "0.1.0", LF23, "17149afb5a99ea8476da0bde5e308f1518b47ee1accfd54a8de2f0434938df7a", "lf/wormhole-core.dar"},
	{ExampleIntegratorPackage, "0.1.0", LF23, "2cf0e72a9373a8adc83156112e5355f942e13c95c840a7aefc2b8c0463524bb0", "lf/example-integrator.dar"},
	{WormholeCorePackage, "0.1.0", LF22, "f496b8edfc7c0619d1bd40f6f5fb3e194fe257405ab467171af52748d5966f59", "lf/lf2.2/wormhole-core.dar"},
	{ExampleIntegratorPackage, "0.1.0", LF22, "4e669734a1d307fba736d6c17ef6703c79b515ee449b3757ec7e0f821e90b5a1", "lf/lf2.2/example-integrator.dar"},
}

// DARs are all archives, those of the default LF first.
func DARs() []DAR { return slices.Clone(builds) }

// Find is the archive of a package for a version of Daml-LF, LF23 or LF22. It fails if there is none.
func Find(name, lf string) (DAR, error) {
	for _, d := range builds {
		if d.Name == name && d.LF == lf {
			return d, nil
		}
	}
	return DAR{}, fmt.Errorf("no DAR of package %q for Daml-LF %q: there are %s and %s for %s and %s",
		name, lf, WormholeCorePackage, ExampleIntegratorPackage, LF23, LF22)
}

// Bytes is the archive's content, a copy. The zero DAR has none.
func (d DAR) Bytes() []byte {
	content, err := files.ReadFile(d.path)
	if err != nil {
		return nil // only of a DAR that did not come from this package
	}
	return content
}

// WormholeCore is the DAR of wormhole-core for the default LF.
func WormholeCore() []byte { return builds[0].Bytes() }

// ExampleIntegrator is the DAR of example-integrator for the default LF. It holds wormhole-core too.
func ExampleIntegrator() []byte { return builds[1].Bytes() }
