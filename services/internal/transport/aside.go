package transport

import (
	"fmt"
	"runtime/debug"
)

// Aside runs fn on a stack of its own, and waits. A panic of fn is one of the caller. It is for goroutines that then
// wait for days, in their thousands: a stack that has grown once does not shrink unless less than a quarter of it is in
// use.
func Aside(fn func()) {
	done := make(chan struct{})
	var cause any
	go func() {
		defer close(done)
		defer func() {
			if cause = recover(); cause != nil {
				cause = fmt.Sprintf("%v\n%s", cause, debug.Stack())
			}
		}()
		fn()
	}()
	<-done
	if cause != nil {
		panic(cause)
	}
}
