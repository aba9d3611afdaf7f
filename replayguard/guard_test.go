package replayguard_test

import (
	"testing"

	"github.com/disclosured/disclosured/replayguard"
	"github.com/disclosured/disclosured/replayguard/guardtest"
)

// newMemory makes the store in memory for the suite.
func newMemory(t testing.TB, limits replayguard.Limits) guardtest.Guard {
	clock := guardtest.NewClock(nil)
	m := replayguard.NewMemory(limits, clock.Now)
	return guardtest.Guard{
		Store:  m,
		Clock:  clock,
		Forget: func(testing.TB) { m.Prune() },
		Check: func(t testing.TB) {
			if err := m.CheckInvariants(); err != nil {
				t.Error(err)
			}
		},
	}
}

func TestMemory(t *testing.T) { guardtest.Run(t, newMemory) }

func TestMemoryModelWithClockBack(t *testing.T) { guardtest.TestModelWithClockBack(t, newMemory) }
