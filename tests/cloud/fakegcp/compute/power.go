package compute

import (
	"net/http"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// power is a method that changes the status of an instance.
type power struct {
	// from is the status that an instance must have, and to the one that it gets at the end of the operation. While the
	// operation runs, the status is during.
	from, during, to string
	// repeatable means that the operation of an instance that already has the status "to" succeeds.
	repeatable bool
	// check returns the error with which the operation fails. Optional.
	check func(call *rest.Call, r *Resource) error
	// end runs at the end of the operation. Optional.
	end func(r *Resource) error
}

// addPower adds the methods that start, stop, suspend and resume instances. A stopped or suspended instance keeps its
// addresses and disks. https://cloud.google.com/compute/docs/instances/instance-life-cycle
func (c *Compute) addPower() {
	for method, p := range map[string]power{
		"stop":    {from: running, during: stopping, to: terminated, repeatable: true, check: c.checkLocalSSDs},
		"start":   {from: terminated, during: provisioning, to: running, repeatable: true, end: c.startAgain},
		"suspend": {from: running, during: suspending, to: suspended, check: c.checkSuspend},
		"resume":  {from: suspended, during: provisioning, to: running, end: c.changedInstance},
	} {
		c.Handle("compute.instances."+method, func(call *rest.Call) (any, error) { return c.power(call, p) })
	}
}

func (c *Compute) power(call *rest.Call, p power) (any, error) {
	r, err := c.Target(call, instances)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (any, error) {
		return c.Start(call.Method, r, func() error { return err }, nil), nil
	}
	switch {
	case r.removing:
		return nil, &rest.Error{Code: http.StatusBadRequest, Reason: "resourceNotReady",
			Message: "The resource '" + r.Path + "' is not ready"}
	case r.Body["status"] == p.to && p.repeatable:
		return c.Start(call.Method, r, nil, nil), nil
	case r.Body["status"] != p.from:
		return fail(&Failure{Code: "UNSUPPORTED_OPERATION", Message: "Instance is in state " +
			rest.Text(r.Body, "status") + " and should be in " + p.from + "."})
	}
	if p.check != nil {
		if err := p.check(call, r); err != nil {
			if _, late := err.(*Failure); late { //nolint:errorlint // checks do not wrap
				return fail(err)
			}
			return nil, err
		}
	}
	r.Body["status"] = p.during
	_ = c.changedInstance(r) // Never fails.
	left := func() bool { return c.resources[r.Path] != r || r.removing || r.Body["status"] != p.during }
	return c.Start(call.Method, r, func() error {
		if left() {
			return nil
		}
		r.Body["status"] = p.to
		if p.end != nil {
			return p.end(r)
		}
		return nil
	}, func() {
		if !left() {
			r.Body["status"] = p.from
			_ = c.changedInstance(r) // Never fails.
		}
	}), nil
}

// startAgain lets the machine of a stopped instance boot again. A machine that has ended by itself is made anew.
func (c *Compute) startAgain(r *Resource) error {
	if r.machine == nil {
		return c.boot(r)
	}
	return c.changedInstance(r)
}

// checkLocalSSDs refuses a call that does not say what becomes of the data of local SSDs.
func (c *Compute) checkLocalSSDs(call *rest.Call, r *Resource) error {
	for _, disk := range Objects(r.Body["disks"]) {
		if disk["type"] == "SCRATCH" && call.Query.Get("discardLocalSsd") == "" {
			return Invalid("Invalid value for field 'discardLocalSsd': ''. The instance has local SSDs.")
		}
	}
	return nil
}

// maxSuspended is the memory in MB up to which an instance can be suspended.
const maxSuspended = 208 << 10

// checkSuspend refuses instances that cannot be suspended.
// https://cloud.google.com/compute/docs/instances/suspend-resume-instance#limitations
func (c *Compute) checkSuspend(call *rest.Call, r *Resource) error {
	unsupported := func(message string) error { return &Failure{Code: "UNSUPPORTED_OPERATION", Message: message} }
	machineType := c.Find(rest.Text(r.Body, "machineType"))
	confidential, _ := r.Body["confidentialInstanceConfig"].(map[string]any)
	switch {
	case len(Objects(r.Body["guestAccelerators"])) > 0:
		return unsupported("Suspending an instance with GPUs is not supported.")
	case confidential["enableConfidentialCompute"] == true || confidential["confidentialInstanceType"] != nil:
		return unsupported("Suspending a Confidential VM is not supported.")
	case strings.HasSuffix(machineType.Name(), "-metal"):
		return unsupported("Suspending a bare metal instance is not supported.")
	case machineType.Body["memoryMb"].(int) > maxSuspended: //nolint:forcetypeassert // AddZone sets it
		return unsupported("Suspending an instance with more than 208 GB of memory is not supported.")
	}
	return c.checkLocalSSDs(call, r)
}
