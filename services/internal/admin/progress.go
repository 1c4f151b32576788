package admin

import (
	"fmt"
	"sync"
	"time"
)

// patience is the time after which a message says what the program waits for.
const patience = time.Second

// during runs the function `do`. If `do` takes more than a second, a message on standard error says what the program
// waits for. On a terminal, the message also counts the seconds.
func (a *app) during(what string, do func() error) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { a.progress(what, done) })
	err := do()
	close(done)
	wg.Wait()
	return err
}

func (a *app) progress(what string, done <-chan struct{}) {
	began := time.Now()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	terminal := isTerminal(a.Stderr) && a.Getenv("TERM") != "dumb"
	for shown := false; ; shown = true {
		select {
		case <-done:
			if shown && terminal {
				fmt.Fprint(a.Stderr, "\r\x1b[K")
			}
			return
		case <-timer.C:
		}
		if !terminal {
			a.note("%s …", what)
			<-done
			return
		}
		fmt.Fprintf(a.Stderr, "\r%s … %ds\x1b[K", what, int(time.Since(began).Seconds()))
		timer.Reset(patience)
	}
}
