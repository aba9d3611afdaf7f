package ledgersim_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/disclosured/disclosured/internal/contractblob"
)

// comparer compares what was recorded with what the simulated participant gave. The two have different ids, offsets and times: ids are
// matched one to one as they are met, offsets by a growing map, times by their presence.
type comparer struct {
	// fixed replaces what is known from the start: fingerprints.
	fixed *strings.Replacer
	// ids are the simulated ids by the recorded ones, and back.
	ids, back map[string]string
	// blobs are the simulated created event blobs by the recorded ones.
	blobs map[string][]byte
	// offsets are the simulated offsets by the recorded ones.
	offsets map[int64]int64
	diffs   []string
}

func newComparer(fixed *strings.Replacer) *comparer {
	return &comparer{fixed: fixed, ids: map[string]string{}, back: map[string]string{}, blobs: map[string][]byte{}, offsets: map[int64]int64{0: 0}}
}

// take returns the differences found since the last call.
func (c *comparer) take() []string {
	out := c.diffs
	c.diffs = nil
	return out
}

func (c *comparer) differ(path, format string, args ...any) {
	c.diffs = append(c.diffs, path+": "+clipped(fmt.Sprintf(format, args...)))
}

// idPattern matches contract ids, reassignment ids and update ids: all that is made at random.
var idPattern = regexp.MustCompile(`\b(00[0-9a-f]{136}|001220[0-9a-f]{64}|1220[0-9a-f]{64})\b`)

// text compares texts, ids in them matched.
func (c *comparer) text(path, recorded, simulated string) {
	recorded = c.fixed.Replace(recorded)
	want, got := idPattern.FindAllString(recorded, -1), idPattern.FindAllString(simulated, -1)
	if len(want) != len(got) || idPattern.ReplaceAllString(recorded, "#") != idPattern.ReplaceAllString(simulated, "#") {
		c.differ(path, "recorded %s, simulated %s", clipped(recorded), clipped(simulated))
		return
	}
	for i := range want {
		c.match(path, want[i], got[i])
	}
}

// match matches one id.
func (c *comparer) match(path, recorded, simulated string) {
	known, seen := c.ids[recorded]
	before, used := c.back[simulated]
	switch {
	case seen && known != simulated:
		c.differ(path, "%.12s was %.12s before and is %.12s now", recorded, known, simulated)
	case used && before != recorded:
		c.differ(path, "%.12s stands for %.12s and for %.12s", simulated, before, recorded)
	default:
		c.ids[recorded], c.back[simulated] = simulated, recorded
	}
}

// translate is a recorded text with the simulated ids in it; ids that were not met stay.
func (c *comparer) translate(recorded string) string {
	return idPattern.ReplaceAllStringFunc(c.fixed.Replace(recorded), func(id string) string {
		if simulated, ok := c.ids[id]; ok {
			return simulated
		}
		return id
	})
}

// offset compares offsets: known ones must be the same, new ones must grow as the recorded ones do.
func (c *comparer) offset(path string, recorded, simulated int64) {
	if known, ok := c.offsets[recorded]; ok {
		if known != simulated {
			c.differ(path, "offset %d was %d before and is %d now", recorded, known, simulated)
		}
		return
	}
	for r, s := range c.offsets {
		if (r < recorded) != (s < simulated) {
			c.differ(path, "offset %d is %d, but %d is %d", recorded, simulated, r, s)
			return
		}
	}
	c.offsets[recorded] = simulated
}

// translateOffset is the simulated offset that stands where the recorded one does: between known ones as far from the nearer.
func (c *comparer) translateOffset(recorded int64) int64 {
	if known, ok := c.offsets[recorded]; ok {
		return known
	}
	if recorded < 0 {
		return recorded
	}
	all := slices.Sorted(maps.Keys(c.offsets))
	at, _ := slices.BinarySearch(all, recorded)
	low := all[max(at-1, 0)]
	below := c.offsets[low] + recorded - low
	if at == len(all) {
		return below
	}
	high := all[at]
	if high-recorded < recorded-low {
		return max(c.offsets[high]-(high-recorded), c.offsets[low])
	}
	return min(below, c.offsets[high])
}

// The fields that are compared in a way of their own, by name.
var (
	setFields = map[string]bool{"witness_parties": true, "signatories": true, "observers": true, "acting_parties": true}
	// offsetFields hold offsets.
	offsetFields = map[string]bool{"offset": true, "completion_offset": true, "participant_pruned_up_to_inclusive": true, "all_divulged_contracts_pruned_up_to_inclusive": true}
	// opaqueFields are compared by presence.
	opaqueFields = map[string]bool{"traceparent": true, "tracestate": true, "next_page_token": true}
)

// message compares two messages of one type.
func (c *comparer) message(path string, recorded, simulated protoreflect.Message) {
	name := recorded.Descriptor().FullName()
	if name == "google.protobuf.Timestamp" {
		return
	}
	fields := recorded.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		at := path + "." + string(fd.Name())
		want, got := recorded.Has(fd), simulated.Has(fd)
		if want != got {
			c.differ(at, "present in what was recorded: %t, in what was simulated: %t", want, got)
			continue
		}
		if !want {
			continue
		}
		c.field(at, fd, recorded.Get(fd), simulated.Get(fd))
	}
	if want, got := unknownFields(recorded), unknownFields(simulated); !slices.Equal(want, got) {
		c.differ(path, "fields unknown to the stubs: recorded %v, simulated %v", want, got)
	}
}

func unknownFields(m protoreflect.Message) []int {
	var out []int
	for raw := m.GetUnknown(); len(raw) > 0; {
		num, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			return append(out, -1)
		}
		out = append(out, int(num))
		raw = raw[n:]
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *comparer) field(path string, fd protoreflect.FieldDescriptor, recorded, simulated protoreflect.Value) {
	switch {
	case fd.IsMap():
		c.differ(path, "maps are not compared")
	case fd.IsList():
		c.list(path, fd, recorded.List(), simulated.List())
	default:
		c.value(path, fd, recorded, simulated)
	}
}

func (c *comparer) list(path string, fd protoreflect.FieldDescriptor, recorded, simulated protoreflect.List) {
	if recorded.Len() != simulated.Len() {
		c.differ(path, "recorded %d elements, simulated %d", recorded.Len(), simulated.Len())
		return
	}
	if setFields[string(fd.Name())] {
		var want, got []string
		for i := range recorded.Len() {
			want, got = append(want, c.fixed.Replace(recorded.Get(i).String())), append(got, simulated.Get(i).String())
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			c.differ(path, "recorded %v, simulated %v", want, got)
		}
		return
	}
	want, got := elements(recorded), elements(simulated)
	if fd.Name() == "connected_synchronizers" {
		// Their order says nothing.
		byAlias := func(a, b protoreflect.Value) int {
			alias := fd.Message().Fields().ByName("synchronizer_alias")
			return strings.Compare(a.Message().Get(alias).String(), b.Message().Get(alias).String())
		}
		slices.SortFunc(want, byAlias)
		slices.SortFunc(got, byAlias)
	}
	for i := range want {
		c.value(fmt.Sprintf("%s[%d]", path, i), fd, want[i], got[i])
	}
}

func elements(list protoreflect.List) []protoreflect.Value {
	out := make([]protoreflect.Value, list.Len())
	for i := range out {
		out[i] = list.Get(i)
	}
	return out
}

func (c *comparer) value(path string, fd protoreflect.FieldDescriptor, recorded, simulated protoreflect.Value) {
	name := string(fd.Name())
	switch {
	case fd.Kind() == protoreflect.MessageKind:
		c.message(path, recorded.Message(), simulated.Message())
	case opaqueFields[name]:
	case offsetFields[name]:
		c.offset(path, recorded.Int(), simulated.Int())
	case name == "created_event_blob":
		c.blob(path, recorded.Bytes(), simulated.Bytes())
	case fd.Kind() == protoreflect.StringKind:
		c.text(path, recorded.String(), simulated.String())
	case name == "timestamp":
		// A Daml Time in a payload follows from the ledger time of its transaction.
		if apart := time.Duration(recorded.Int()-simulated.Int()) * time.Microsecond; apart.Abs() > 10*time.Second {
			c.differ(path, "recorded %d, simulated %d", recorded.Int(), simulated.Int())
		}
	default:
		if !recorded.Equal(simulated) {
			c.differ(path, "recorded %v, simulated %v", recorded, simulated)
		}
	}
}

// blob compares created event blobs by what is in them.
func (c *comparer) blob(path string, recorded, simulated []byte) {
	want, err := contractblob.Decode(recorded)
	if err != nil {
		c.differ(path, "recorded: %v", err)
		return
	}
	got, err := contractblob.Decode(simulated)
	if err != nil {
		c.differ(path, "simulated: %v", err)
		return
	}
	c.text(path+" contract id", want.ContractID.String(), got.ContractID.String())
	c.text(path+" template", want.TemplateID.String(), got.TemplateID.String())
	c.text(path+" package", want.PackageName, got.PackageName)
	c.blobs[string(recorded)] = simulated
}

// statusOf compares how two calls ended.
func (c *comparer) statusOf(path string, recorded, simulated error) {
	want, got := status.Convert(recorded), status.Convert(simulated)
	if want.Code() != got.Code() {
		c.differ(path, "recorded %s (%s), simulated %s (%s)", want.Code(), clipped(want.Message()), got.Code(), clipped(got.Message()))
		return
	}
	if want.Code() == codes.OK {
		return
	}
	expected, actual := detailsOf(want), detailsOf(got)
	if expected.reason != actual.reason {
		c.differ(path, "recorded reason %q, simulated %q (%s)", expected.reason, actual.reason, clipped(got.Message()))
	}
	if !slices.Equal(expected.keys, actual.keys) {
		c.differ(path, "recorded metadata keys %v, simulated %v", expected.keys, actual.keys)
	}
	if expected.retry != actual.retry {
		c.differ(path, "recorded retry hint %s, simulated %s", expected.retry, actual.retry)
	}
	if expected.request != actual.request {
		c.differ(path, "recorded request info: %t, simulated: %t", expected.request, actual.request)
	}
	if expected.model != actual.model {
		c.differ(path, "the model's message: recorded %q, simulated %q", expected.model, actual.model)
	}
	c.resources(path, expected.resources, actual.resources)
}

func (c *comparer) resources(path string, recorded, simulated [][2]string) {
	if len(recorded) != len(simulated) {
		c.differ(path, "recorded resources %v, simulated %v", recorded, simulated)
		return
	}
	for i := range recorded {
		if recorded[i][0] != simulated[i][0] {
			c.differ(path, "recorded resource %s, simulated %s", recorded[i][0], simulated[i][0])
			continue
		}
		switch recorded[i][0] {
		case "CONTRACT_ARG":
		case "OFFSET":
			var want, got int64
			_, _ = fmt.Sscan(recorded[i][1], &want)
			_, _ = fmt.Sscan(simulated[i][1], &got)
			if known := c.translateOffset(want); known != got {
				c.differ(path, "recorded offset %d, that is %d, simulated %d", want, known, got)
			}
		default:
			c.text(path+" resource", recorded[i][1], simulated[i][1])
		}
	}
}

type details struct {
	reason, model string
	keys          []string
	retry         string
	request       bool
	resources     [][2]string
}

func detailsOf(st *status.Status) details {
	d := details{retry: "none"}
	for _, one := range st.Details() {
		switch one := one.(type) {
		case *errdetails.ErrorInfo:
			d.reason = one.GetReason()
			d.keys = slices.Sorted(maps.Keys(one.GetMetadata()))
		case *errdetails.RetryInfo:
			d.retry = one.GetRetryDelay().AsDuration().String()
		case *errdetails.RequestInfo:
			d.request = true
		case *errdetails.ResourceInfo:
			d.resources = append(d.resources, [2]string{one.GetResourceType(), one.GetResourceName()})
		}
	}
	if d.reason == "DAML_FAILURE" {
		_, d.model, _ = strings.Cut(st.Message(), "(error category 9): ")
	}
	return d
}

func clipped(s string) string {
	if len(s) <= 160 {
		return s
	}
	return s[:160] + "…"
}
