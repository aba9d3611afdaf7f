package contractblob

import (
	"fmt"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// same reports whether two values are equal but for names, labels, ranks and trailing None fields.
func same(a, b damlvalue.Value) bool { return difference(a, b) == "" }

// difference says in words where two values differ first, names, labels, ranks and trailing None fields aside; "" where nowhere.
// The words contain places and kinds and no values: payloads are private.
func difference(a, b damlvalue.Value) string {
	switch a := a.(type) {
	case damlvalue.Record:
		b, ok := b.(damlvalue.Record)
		if !ok {
			break
		}
		x, y := withoutTrailingNones(a.Fields), withoutTrailingNones(b.Fields)
		if len(x) != len(y) {
			return fmt.Sprintf(": %d fields against %d", len(x), len(y))
		}
		for i := range x {
			if d := difference(x[i].Value, y[i].Value); d != "" {
				return fmt.Sprintf(" field %d%s", i+1, d)
			}
		}
		return ""
	case damlvalue.Variant:
		b, ok := b.(damlvalue.Variant)
		if !ok {
			break
		}
		if a.Constructor != b.Constructor {
			return ": another constructor"
		}
		return difference(a.Value, b.Value)
	case damlvalue.Enum:
		b, ok := b.(damlvalue.Enum)
		if !ok {
			break
		}
		if a.Constructor != b.Constructor {
			return ": another constructor"
		}
		return ""
	case damlvalue.Optional:
		b, ok := b.(damlvalue.Optional)
		switch {
		case !ok:
		case (a.Value == nil) != (b.Value == nil):
			return ": None against Some"
		case a.Value == nil:
			return ""
		default:
			return difference(a.Value, b.Value)
		}
	case damlvalue.List:
		b, ok := b.(damlvalue.List)
		if !ok {
			break
		}
		if len(a) != len(b) {
			return fmt.Sprintf(": %d elements against %d", len(a), len(b))
		}
		for i := range a {
			if d := difference(a[i], b[i]); d != "" {
				return fmt.Sprintf(" element %d%s", i+1, d)
			}
		}
		return ""
	case damlvalue.TextMap:
		b, ok := b.(damlvalue.TextMap)
		if !ok {
			break
		}
		if len(a) != len(b) {
			return fmt.Sprintf(": %d entries against %d", len(a), len(b))
		}
		for i := range a {
			if a[i].Key != b[i].Key {
				return fmt.Sprintf(" entry %d: another key", i+1)
			}
			if d := difference(a[i].Value, b[i].Value); d != "" {
				return fmt.Sprintf(" entry %d%s", i+1, d)
			}
		}
		return ""
	case damlvalue.GenMap:
		b, ok := b.(damlvalue.GenMap)
		if !ok {
			break
		}
		if len(a) != len(b) {
			return fmt.Sprintf(": %d entries against %d", len(a), len(b))
		}
		for i := range a {
			if d := difference(a[i].Key, b[i].Key); d != "" {
				return fmt.Sprintf(" key %d%s", i+1, d)
			}
			if d := difference(a[i].Value, b[i].Value); d != "" {
				return fmt.Sprintf(" entry %d%s", i+1, d)
			}
		}
		return ""
	default:
		// The others are plain and comparable. A value of a foreign type is equal to none.
		if damlvalue.Kind(a) == damlvalue.Kind(b) {
			if a == b {
				return ""
			}
			return ": another " + damlvalue.Kind(a)
		}
	}
	return fmt.Sprintf(": %s against %s", damlvalue.Kind(a), damlvalue.Kind(b))
}
