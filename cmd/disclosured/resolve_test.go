package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Why an update is not known is said, and nothing else: where history did not answer nobody knows where it begins.
func TestResolvePrintsWhyAnUpdateIsNotKnown(t *testing.T) {
	for want, c := range map[string]*disclosurev1.Consumption{
		"at or before offset 9; which update it was history did not tell in time: ask again": {BeforeHistoryOffset: 9, HistoryUnavailable: true},
		"at or before offset 9, by an update that this service's history does not know":      {BeforeHistoryOffset: 9},
		"update 1220ab at offset 7, record time":                                             {Offset: 7, UpdateId: "1220ab"},
	} {
		var out strings.Builder
		if err := printRedeem(&out, &disclosurev1.PrepareRedeemResponse{Consumption: c}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v: %s; want %q in it", err, out.String(), want)
		}
	}
}

func TestChurnText(t *testing.T) {
	got := churnText(&disclosurev1.ChurnForecast{ConsumesPerMinute: 0.31, Window: durationpb.New(time.Minute), InheritedConsumesSeen: 5,
		MedianLife: durationpb.New(48 * time.Second), LivesSeen: 4, MedianLifeInherited: true})
	want := "0.31 consumes a minute (0 in 1m0s, and a share of 5 of the node that it was split from), a contract id lives 48s (median of 4, from the node that it was split from)"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
