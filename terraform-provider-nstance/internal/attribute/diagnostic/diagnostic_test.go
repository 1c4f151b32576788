package diagnostic_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// TestInterrupted checks that an interrupted run blames neither the bucket nor a server, and says how to go on.
func TestInterrupted(t *testing.T) {
	for _, test := range []struct {
		why         error
		interrupted bool
	}{
		{fmt.Errorf("read the lock: %w", context.Canceled), true},
		{fmt.Errorf("call: %w", status.Error(codes.Canceled, "context canceled")), true},
		{context.DeadlineExceeded, false},
		{errors.New("no leader answers"), false},
		{nil, false},
	} {
		text := diagnostic.Failure{What: "Cannot wait", Why: test.why, Do: "Check the log of the leader."}.Detail()
		if strings.Contains(text, "interrupted") != test.interrupted ||
			strings.Contains(text, "the log of the leader") == test.interrupted {
			t.Errorf("%v: %s", test.why, text)
		}
	}
}
