// Package repotest holds the repository to its own rules, as tests: which room may import what, what every package, test and
// generated file must have. It has no code of its own.
//
// The import table (rooms_test.go) is the architecture. A new room, or a new dependency of one, is a new line there: a choice
// that a reader of the change sees, and not something that just happens.
package repotest
