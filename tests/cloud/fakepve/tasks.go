package fakepve

import (
	"fmt"
	"time"
)

// taskTime is the least time that a task takes. The real ones take longer.
const taskTime = 2 * time.Millisecond

type task struct {
	node string
	exit string // "": it runs
}

// startTask starts a task that runs the function work, and returns the ID of the task. work runs while the mutex is not
// held. work returns the error text with which the task ends, or "" if the task succeeds.
func (c *Cluster) startTask(in request, node, kind string, id any, work func() string) string {
	upid := fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%v:%s:", node, len(c.tasks)+1, 0x8c93f3, 0x66a1b2c3, kind, id,
		in.tokenID)
	t := &task{node: node}
	c.tasks[upid] = t
	c.running.Go(func() {
		time.Sleep(taskTime)
		exit := in.fault.TaskFails
		if exit == "" {
			exit = work()
		}
		if exit == "" {
			exit = "OK"
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		t.exit = exit
	})
	return upid
}

func (c *Cluster) taskStatus(in request) (any, *apiError) {
	t := c.tasks[in.Get("upid")]
	if t == nil || t.node != in.Get("node") {
		return nil, die("no such task")
	}
	status := map[string]any{"upid": in.Get("upid"), "node": t.node, "status": "running"}
	if t.exit != "" {
		status["status"], status["exitstatus"] = "stopped", t.exit
	}
	return status, nil
}
