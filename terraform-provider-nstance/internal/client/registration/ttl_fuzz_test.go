package registration_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/registration"
)

func FuzzParseTTL(f *testing.F) {
	for _, seed := range []string{"3h", "1m", "30d", "1.5h", "-1h", "1e9h", "9999999999999h", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if ttl, err := registration.ParseTTL(text); err == nil && (ttl < time.Minute || ttl > 10*366*24*time.Hour) {
			t.Errorf("%q is %s", text, ttl)
		}
	})
}
