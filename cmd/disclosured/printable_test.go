package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/disclosured/disclosured/client"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// evil is what a terminal would act on: a cleared screen, a title, a line of its own, a C1 introducer, a turned direction, a byte that is no text.
const evil = "\x1b[2J\x1b]0;title\a\r\nverdict REDEEMABLE\t\u009b31m\u202eabc\x7f\xff"

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"party::1220ab – größe": "party::1220ab – größe",
		evil:                    `\x1b[2J\x1b]0;title\a\r\nverdict REDEEMABLE\t\u009b31m\u202eabc\x7f\xff`,
		"\ufffd":                "\ufffd",
		"\U000e0041":            `\U000e0041`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got, want := printableLines("a\n\tb\r\x1b"), "a\n\tb\\r\\x1b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Whatever a service, or a blob, says, a terminal gets lines of ours of characters that are seen.
func TestNothingPrintedReachesTheTerminal(t *testing.T) {
	text := strings.ToValidUTF8(evil, "")
	scope := &disclosurev1.Scope{Consumer: text, Operator: text, PackageName: text, Namespace: &text}
	contract := &disclosurev1.DisclosedContract{ContractId: text, SynchronizerId: text, TemplateId: &disclosurev1.Identifier{PackageId: text, ModuleName: text, EntityName: text}}
	answer := &disclosurev1.Answer{Position: &disclosurev1.Position{ParticipantId: text, UpdateId: text}}
	finding := &disclosurev1.Finding{Kind: text, Scope: scope, Prefix: text, Detail: text, ContractIds: []string{text}}
	refusal, err := status.New(codes.NotFound, text).WithDetails(&errdetails.ErrorInfo{Reason: text, Metadata: map[string]string{text: text}})
	if err != nil {
		t.Fatal(err)
	}
	list := &disclosurev1.ListScopesResponse{Answer: answer, Scopes: []*disclosurev1.ScopeInfo{{Scope: scope, Findings: map[string]int64{text: 1}}}}
	redeem := &disclosurev1.PrepareRedeemResponse{
		Answer: answer, Digest: text, FailedRule: &disclosurev1.FailedRule{Code: text, Message: text}, Consumption: &disclosurev1.Consumption{UpdateId: text},
		ReplayNode: &disclosurev1.ReplayNode{Contract: &disclosurev1.Contract{ContractId: text}, Prefix: text, Scope: scope},
		CoreState:  &disclosurev1.CoreState{Contract: &disclosurev1.Contract{ContractId: text}}, DisclosedContracts: []*disclosurev1.DisclosedContract{contract},
		Findings: []*disclosurev1.Finding{finding},
	}
	exam := func(out *strings.Builder) error {
		e := &examination{out: out}
		e.ok("a", "%s", text)
		e.note("b", "%s", text)
		e.wrong("c", refusal.Err(), "")
		return nil
	}
	for what, c := range map[string]struct {
		lines int
		print func(out *strings.Builder) error
	}{
		"scopes":  {3, func(out *strings.Builder) error { return printScopes(out, list) }},
		"resolve": {13, func(out *strings.Builder) error { return printRedeem(out, redeem) }},
		"audit": {4, func(out *strings.Builder) error {
			return printAudit(out, &disclosurev1.AuditResponse{Answer: answer, Findings: []*disclosurev1.Finding{finding}, Counts: map[string]int64{text: 1}, IncrementalAgrees: true})
		}},
		"differences": {2, func(out *strings.Builder) error { difference{indexOnly: []string{text}}.print(out, 1); return nil }},
		"verify": {0, func(out *strings.Builder) error {
			return printVerification(out, &client.Report{ContractID: text, TemplateID: text, PackageName: text, Signatories: []string{text}})
		}},
		"doctor": {0, exam},
		"a refusal": {3, func(out *strings.Builder) error {
			out.WriteString(explain("asking", refusal.Err()).Error() + "\n" + explain("asking", status.Error(codes.Internal, text)).Error() + "\n")
			return nil
		}},
		"scopes --json":  {0, func(out *strings.Builder) error { return writeJSON(out, scopesJSON(list)) }},
		"resolve --json": {0, func(out *strings.Builder) error { return printDisclosedContracts(out, redeem.DisclosedContracts) }},
	} {
		var out strings.Builder
		if err := c.print(&out); err != nil {
			t.Fatal(err)
		}
		bad := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) && !(r == '\t' && what == "doctor") })
		if lines := strings.Count(out.String(), "\n"); bad >= 0 || c.lines > 0 && lines != c.lines || strings.Contains(out.String(), "\nverdict REDEEMABLE") {
			t.Errorf("%s: %d lines, want %d, and %q at %d:\n%q", what, lines, c.lines, out.String()[max(bad, 0):min(len(out.String()), max(bad, 0)+8)], bad, out.String())
		}
		if !strings.HasSuffix(what, "--json") {
			continue
		}
		var read any
		if err := json.Unmarshal([]byte(out.String()), &read); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	var out strings.Builder
	var back string
	if err := writeJSON(&out, "\U000e0041"+text); err != nil || json.Unmarshal([]byte(out.String()), &back) != nil || back != "\U000e0041"+text {
		t.Errorf("%v: %q read back as %q", err, out.String(), back)
	}
}
