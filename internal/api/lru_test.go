package api

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/disclosured/disclosured/internal/wormhole"
)

// What is remembered is within its bounds, is what was given, and is what was used last.
func TestLRUAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxEntries, maxBytes = 4, 100
		l := newLRU[int, string](maxEntries, maxBytes)
		type entry struct {
			key   int
			value string
			bytes int
		}
		var model []entry // the last used is last
		use := func(key int) (string, bool) {
			for i, e := range model {
				if e.key == key {
					model = append(append(model[:i:i], model[i+1:]...), e)
					return e.value, true
				}
			}
			return "", false
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := rapid.IntRange(0, 7).Draw(t, "key")
			if rapid.Bool().Draw(t, "get") {
				want, wantOK := use(key)
				if got, ok := l.get(key); got != want || ok != wantOK {
					t.Fatalf("get %d: %q, %v, want %q, %v", key, got, ok, want, wantOK)
				}
				continue
			}
			value, bytes := rapid.StringN(1, 3, -1).Draw(t, "value"), rapid.IntRange(1, 130).Draw(t, "bytes")
			want, ok := use(key)
			if !ok {
				want = value
				model = append(model, entry{key, value, bytes})
			}
			if got := l.getOrAdd(key, value, bytes); got != want {
				t.Fatalf("getOrAdd %d: %q, want %q", key, got, want)
			}
			total := func() (n int) {
				for _, e := range model {
					n += e.bytes
				}
				return n
			}
			for len(model) > maxEntries || total() > maxBytes {
				model = model[1:]
			}
			if len(l.entries) != len(model) || l.used.Len() != len(model) || l.bytes != total() {
				t.Fatalf("%d entries, %d in order, %d bytes; want %d and %d bytes", len(l.entries), l.used.Len(), l.bytes, len(model), total())
			}
		}
	})
}

// A VAA is judged once per set of keys, whatever index and expiry the set has; what was forgotten is judged again.
func TestVAAIsJudgedOnce(t *testing.T) {
	v := verdicts{newLRU[verdictKey, func() signedBy](2, 1<<20)}
	guardians := map[uint8]wormhole.GuardianKey{0: wormhole.TestGuardian("a")}
	set := &wormhole.GuardianSet{Keys: []string{guardians[0].Address()}}
	sub := func(sequence uint64) *subject {
		var c checks
		s := c.vaaBytes("vaa", wormhole.SignVAA(wormhole.VAABody{Sequence: sequence}, 0, guardians).Encode())
		return &s
	}
	judged := func(sequence uint64) *wormhole.PubKey { return &v.signatures(sub(sequence), set).keys[0] }
	first := judged(1)
	if judged(1) != first {
		t.Error("a VAA was judged twice")
	}
	expires := *set
	expires.Expiration = new(time.Unix(1, 0))
	if &v.signatures(sub(1), &expires).keys[0] != first {
		t.Error("a VAA was judged again because the set expires")
	}
	if other := v.signatures(sub(1), &wormhole.GuardianSet{Keys: []string{wormhole.TestGuardian("b").Address()}}); other.rule == nil {
		t.Error("another set's judgement is this one's")
	}
	judged(2)
	judged(3)
	if judged(1) == first {
		t.Error("more is remembered than fits")
	}
}
