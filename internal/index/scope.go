package index

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// ScopeOf is the scope that a replay node of the package belongs to.
func ScopeOf(packageName string, node *wormhole.ReplayNode) Scope {
	return Scope{PackageName: packageName, Operator: node.Operator, Consumer: node.Consumer, Namespace: node.Namespace}
}

// String names the scope for people.
func (s Scope) String() string {
	namespace := "no namespace"
	if s.Namespace.Present {
		namespace = fmt.Sprintf("namespace %q", s.Namespace.Value)
	}
	return fmt.Sprintf("%s, operator %s, consumer %s, %s", s.PackageName, s.Operator, s.Consumer, namespace)
}

// CompareScopes orders scopes as reports list them: by package name, operator, consumer, namespace, an absent namespace
// before "".
func CompareScopes(a, b Scope) int {
	return cmp.Or(
		strings.Compare(a.PackageName, b.PackageName),
		strings.Compare(a.Operator, b.Operator),
		strings.Compare(a.Consumer, b.Consumer),
		comparePresence(a.Namespace.Present, b.Namespace.Present),
		strings.Compare(a.Namespace.Value, b.Namespace.Value),
	)
}

func comparePresence(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// ScopeSelector names a scope, or as much of it as a caller knows. Empty PackageName, Operator and Consumer match any.
type ScopeSelector struct {
	PackageName, Operator, Consumer string
	// Namespace, if not nil, matches the scopes whose namespace is present and has this value ("" too).
	Namespace *string
	// NamespaceAbsent matches the scopes without a namespace. With Namespace set as well nothing matches. With neither, any
	// namespace does.
	NamespaceAbsent bool
}

// Matches reports whether the scope is one that the selector names.
func (s ScopeSelector) Matches(scope Scope) bool {
	return (s.PackageName == "" || s.PackageName == scope.PackageName) &&
		(s.Operator == "" || s.Operator == scope.Operator) &&
		(s.Consumer == "" || s.Consumer == scope.Consumer) &&
		(s.Namespace == nil || scope.Namespace.Present && scope.Namespace.Value == *s.Namespace) &&
		(!s.NamespaceAbsent || !scope.Namespace.Present)
}

// String names what was asked for, for error messages.
func (s ScopeSelector) String() string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("package", s.PackageName)
	add("operator", s.Operator)
	add("consumer", s.Consumer)
	if s.Namespace != nil {
		parts = append(parts, fmt.Sprintf("namespace %q", *s.Namespace))
	}
	if s.NamespaceAbsent {
		parts = append(parts, "no namespace")
	}
	if len(parts) == 0 {
		return "any scope"
	}
	return strings.Join(parts, ", ")
}

// Selector selects exactly this scope.
func (s Scope) Selector() ScopeSelector {
	selector := ScopeSelector{PackageName: s.PackageName, Operator: s.Operator, Consumer: s.Consumer, NamespaceAbsent: !s.Namespace.Present}
	if s.Namespace.Present {
		selector.Namespace = &s.Namespace.Value
	}
	return selector
}

// Keys of the persistent maps. Every variable part is written with its length, so that no two different tuples have one key,
// whatever characters they have, and a tuple's beginning is a prefix of its key.

func appendText(key []byte, text string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(text))), text...)
}

// scopeKey has the consumer first: it is what every request names.
func scopeKey(s Scope) []byte {
	key := make([]byte, 0, len(s.Consumer)+len(s.Operator)+len(s.PackageName)+len(s.Namespace.Value)+8)
	key = appendText(key, s.Consumer)
	key = appendText(key, s.Operator)
	key = appendText(key, s.PackageName)
	if !s.Namespace.Present {
		return append(key, 0)
	}
	return appendText(append(key, 1), s.Namespace.Value)
}
