package wire

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzPage checks that Page accepts only tokens that it made, and that each token leads to its position.
func FuzzPage(f *testing.F) {
	for _, seed := range []string{"", tokenOf(2), tokenOf(5), tokenOf(6), "x", "cGFnZToy\n", "cGFnZTowMg==",
		"cGFnZTotMQ==", "cGFnZTo5OTk5OTk5OTk5OTk="} {
		f.Add(seed, 2)
	}
	f.Add("", -1)
	f.Add(tokenOf(1), 0)
	items := []int{0, 1, 2, 3, 4}
	f.Fuzz(func(t *testing.T, token string, most int) {
		page, next, err := Page(items, most, token)
		if err != nil {
			var api *Error
			if !errors.As(err, &api) || api.Status != http.StatusBadRequest || page != nil || next != "" {
				t.Errorf("%q, %d: %v, %q beside %v", token, most, page, next, err)
			}
			return
		}
		start := len(items) - len(page)
		if next != "" {
			start = page[0]
		}
		if token != "" && token != tokenOf(start) || most > 0 && len(page) > most || next != "" &&
			next != tokenOf(start+most) {
			t.Errorf("%q, %d: %v, %q", token, most, page, next)
		}
	})
}

// FuzzDecodeJSON checks that invalid input gives SerializationException, and that decoded values survive a round trip.
func FuzzDecodeJSON(f *testing.F) {
	type request struct {
		Name       string
		Recursive  *bool
		MaxResults *int32
		Names      []string
		Tags       []struct{ Key, Value string }
		Data       []byte
	}
	for _, seed := range []string{
		`{}`, `{"Name": "a", "Recursive": true, "MaxResults": 10, "Names": ["b"], "Tags": [{"Key": "c", "Value": "d"}], "Data": "ZQ=="}`, `{"Name": 1}`, `{"Other": 1}`, `{}{}`, `null`, ``,
		`{"MaxResults": 1e9}`, `{"Data": "%"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var first, again request
		if err := decodeJSON(body, &first); err != nil {
			var api *Error
			if !errors.As(err, &api) || api.Code != "SerializationException" {
				t.Errorf("not an answer of AWS: %v", err)
			}
			return
		}
		text, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		if err := decodeJSON(text, &again); err != nil || !cmp.Equal(first, again) {
			t.Errorf("%s: %v, %s", body, err, cmp.Diff(first, again))
		}
	})
}
