package objstore

import (
	"context"
	"errors"
	"sync"
)

// WithProbe returns a view of store that runs [Probe] under key before its first Put. If the probe fails, the Put fails
// with the same error. An error that wraps [ErrUnconditional] is final. After any other error the next Put runs the
// probe again. Reads and deletes run no probe.
func WithProbe(store Store, key string) Store { return &probed{Store: store, key: key} }

type probed struct {
	Store
	key string

	mu   sync.Mutex // held during the probe, so that concurrent puts wait for its result
	done bool
	err  error
}

func (p *probed) Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error) {
	if err := p.probe(ctx); err != nil {
		return "", err
	}
	return p.Store.Put(ctx, key, body, cond)
}

func (p *probed) probe(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return p.err
	}
	err := Probe(ctx, p.Store, p.key)
	if p.done = err == nil || errors.Is(err, ErrUnconditional); p.done {
		p.err = err
	}
	return err
}
