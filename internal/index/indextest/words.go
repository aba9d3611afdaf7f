package indextest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// words remembers what entries are in words: entries are immutable, and each is compared many times.
type words map[*index.Entry]string

// describe is everything about an entry that an index must keep.
func (w words) describe(e *index.Entry) string {
	text, ok := w[e]
	if !ok {
		text = describe(e)
		w[e] = text
	}
	return text
}

func describe(e *index.Entry) string {
	flight := ""
	if e.InFlight {
		flight = " in flight to " + e.Target
	}
	return fmt.Sprintf("%s on %s counter %d%s, %s, parent %q, offset %d, update %q, recorded %d, %s, signed %v, blob %q %s %q, %s",
		e.ContractID, e.SynchronizerID, e.ReassignmentCounter, flight, e.Class, e.ParentID, e.Offset, e.UpdateID, micros(e.RecordTime),
		e.TemplateID, e.Signatories, e.Blob, e.BlobCheck, e.BlobFault, describePayload(e.Payload))
}

func describePayload(p wormhole.Payload) string {
	if node, ok := p.(*wormhole.ReplayNode); ok {
		return fmt.Sprintf("node %q of %s and %s %v holding %x", node.Prefix, node.Consumer, node.Operator, node.Namespace, node.Consumed.Packed())
	}
	return fmt.Sprintf("%T %+v", p, p)
}

// answer puts a lookup's result in the words that Naive uses.
func (w words) answer(e *index.Entry, err error) string {
	if err == nil {
		return w.describe(e)
	}
	var (
		unknown *index.UnknownScopeError
		gap     *index.GapError
		fork    *index.ForkError
		flight  *index.InFlightError
		none    *index.NoCoreStateError
		doubled *index.DoubledCoreStateError
		absent  *index.NoContractError
		several *index.SeveralContractsError
	)
	switch {
	case errors.As(err, &unknown):
		return "unknown scope"
	case errors.As(err, &gap):
		return "gap at " + gap.Prefix.String()
	case errors.As(err, &fork):
		return "fork " + strings.Join(fork.ContractIDs, " ")
	case errors.As(err, &flight):
		return fmt.Sprintf("in flight %s from %s to %s", flight.ContractID, flight.Source, flight.Target)
	case errors.As(err, &none):
		return fmt.Sprintf("no CoreState, %d puppets, %d shadows, %d others", none.Puppets, none.Shadows, none.Others)
	case errors.As(err, &doubled):
		return "doubled " + strings.Join(doubled.ContractIDs, " ")
	case errors.As(err, &absent):
		return "none"
	case errors.As(err, &several):
		return "several " + strings.Join(several.ContractIDs, " ")
	default:
		return "error: " + err.Error()
	}
}

// findingLine is a finding without its detail.
func findingLine(f index.Finding) string {
	scope := "-"
	if f.Scope != nil {
		scope = f.Scope.String()
	}
	ids := slices.Clone(f.ContractIDs)
	slices.Sort(ids)
	return fmt.Sprintf("%s | %s | %q | %s | %d", f.Kind, scope, f.Prefix, strings.Join(ids, " "), f.Count)
}

func describeEnd(end index.Ended, known bool) string {
	if !known {
		return "no end"
	}
	scope := "-"
	if end.Scope != nil {
		scope = end.Scope.String()
	}
	return fmt.Sprintf("%s %s in (%d, %d] by %q at %d, since %d, %s %q, then %s", end.ContractID, end.How, end.AfterOffset, end.Offset, end.UpdateID,
		micros(end.RecordTime), micros(end.Since), scope, end.Prefix, strings.Join(end.Successors, " "))
}

func describeConsume(c index.Consume, known bool) string {
	if !known {
		return "no consume"
	}
	return fmt.Sprintf("%s by %q at %d, %d", c.Digest, c.UpdateID, c.Offset, micros(c.RecordTime))
}

func describeLives(lives []index.NodeLife) string {
	var lines []string
	for _, l := range lives {
		lines = append(lines, fmt.Sprintf("%s %q from %d to %d", l.ContractID, l.Prefix, micros(l.Created), micros(l.Ended)))
	}
	return strings.Join(lines, "; ")
}

// micros is a time in microseconds, as exact as any store keeps it; 0 for the zero time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
