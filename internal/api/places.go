package api

import (
	"context"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
)

// place is a call's place among those that may be there at once. It is taken when the call's headers are there, before anything of its
// request is read, and given back when nothing of the call is left here: not its stream, nor its handler, nor an answer that its client has
// not taken.
type place struct {
	// hasDeadline is whether the caller set one.
	hasDeadline bool
	users       atomic.Int32
	release     func()
}

type placeKey struct{}

func placeOf(ctx context.Context) *place {
	p, _ := ctx.Value(placeKey{}).(*place)
	return p
}

// use adds a user; false where the call is over.
func (p *place) use() bool {
	for {
		n := p.users.Load()
		if n == 0 {
			return false
		}
		if p.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (p *place) drop() {
	if p.users.Add(-1) == 0 {
		p.release()
	}
}

// admit is grpc's tap: it runs once a call's headers are there, under a lock of the connection. Whom it refuses costs neither a goroutine nor
// the request's bytes; the transport bounds how many refusals wait to be sent.
func (c *calls) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	k, known := c.methods[info.FullMethodName]
	release, refused := c.limits.admit(callerOfContext(ctx), k, 1)
	if refused != nil {
		if !known {
			return ctx, refused
		}
		ctx, own := c.begin(ctx)
		return ctx, c.observe(ctx, own, path.Base(info.FullMethodName), k.String())(refused)
	}
	p := &place{release: release}
	if over := connOf(ctx); over != nil {
		over.begin()
		p.release = func() {
			release()
			over.end()
		}
	}
	p.users.Store(1)
	_, p.hasDeadline = ctx.Deadline()
	streamCtx, cancel := ctx, func() {}
	ctx = context.WithValue(ctx, placeKey{}, p)
	if k == unary {
		// Bounds how long the request may take to arrive; the call's own deadline is no later.
		ctx, cancel = context.WithTimeout(ctx, c.cfg.MaxDeadline)
	}
	context.AfterFunc(streamCtx, func() {
		cancel()
		p.drop()
	})
	return ctx, nil
}

// answer is an answer on its way: the message, and what it holds until its bytes are written to the connection, the client has given the call up,
// or the connection is closed.
type answer struct {
	message proto.Message
	size    int
	sent    func()
}

// answering takes what an answer needs to be sent, or refuses it.
func (c *calls) answering(ctx context.Context, message proto.Message) (*answer, error) {
	a := &answer{message: message, size: proto.Size(message)}
	back, refused := c.limits.holdBytes(callerOfContext(ctx), a.size)
	if refused != nil {
		return nil, refused
	}
	p := placeOf(ctx)
	if p != nil && !p.use() {
		back()
		return nil, context.Canceled
	}
	over := connOf(ctx)
	var late *time.Timer
	a.sent = sync.OnceFunc(func() {
		if late != nil {
			late.Stop()
		}
		if over != nil {
			over.forget(a)
		}
		back()
		if p != nil {
			p.drop()
		}
	})
	if over != nil {
		late = time.AfterFunc(c.cfg.SendTimeout, over.late)
		if !over.hold(a) {
			a.sent()
			return nil, context.Canceled
		}
	}
	return a, nil
}

// encode gives the answer's bytes, whose last user calls sent.
func (a *answer) encode() (mem.BufferSlice, error) {
	// Buffers that are not greater than a KiB are not told when they are free.
	encoded, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(make([]byte, 0, max(a.size, 1<<10+1)), a.message)
	if err != nil {
		a.sent()
		return nil, err
	}
	a.message = nil
	return mem.BufferSlice{mem.NewBuffer(&encoded, onFree(a.sent))}, nil
}

// onFree is a buffer pool that is told when its one buffer is free.
type onFree func()

func (f onFree) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }
func (f onFree) Put(*[]byte)            { f() }

func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if at, ok := p.Addr.(connAddr); ok {
			return at.conn
		}
	}
	return nil
}
