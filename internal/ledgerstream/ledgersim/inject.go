package ledgersim

// injection is what a fault puts into the stream in place of an update.
type injection struct {
	message any
	// gone marks an update that only tailing or bounded streams of updates show.
}

func (f *updateFormat) injected(u *update) any { return u.injected.message }
