package web_test

import (
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

const (
	groupPath    = "/ui/shards/a/groups/workers"
	instancePath = "/ui/shards/a/instances/" + first
)

// TestRelease checks that the page shows a preserved instance with its reason, and that its form releases the instance.
func TestRelease(t *testing.T) {
	s := newSite(t, "")
	s.a.Instances[0].PreservedAt = timestamppb.New(fleettest.Now.Add(-time.Minute))
	s.a.Instances[0].PreservedUntil = timestamppb.New(fleettest.Now.Add(time.Hour))
	s.a.Instances[0].PreserveReason = "its disk is full"
	for path, want := range map[string]string{groupPath: "1 preserved",
		instancePath: "Preserved because its disk is full"} {
		if text := s.text(t, path, http.StatusOK); !strings.Contains(text, want) {
			t.Errorf("%s: there is no %q in\n%s", path, want, text)
		}
	}
	resp := s.do(t, request{method: http.MethodPost, path: instancePath + "/release",
		form: url.Values{"confirm": {"000000"}}})
	resp.Body.Close()
	if to := resp.Header.Get("Location"); to != instancePath+"?done=release" ||
		s.a.Instances[0].GetDeleteReason() != "released" {
		t.Error(resp.Status, to, s.a.Instances[0])
	}
	if text := s.text(t, groupPath, http.StatusOK); !strings.Contains(text, "1 draining") {
		t.Error(text)
	}
}

// TestActions checks that each form makes its change, that the browser is then sent to the right address, and that the
// log names the person.
func TestActions(t *testing.T) {
	s := newSite(t, logins)
	cookie := s.login(t, "olivias-token-of-24-chars")
	header := map[string]string{"Cookie": cookie.Name + "=" + cookie.Value, "Sec-Fetch-Site": "same-origin"}
	show := func() string {
		resp := s.do(t, request{path: groupPath, header: header})
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := show(); strings.Contains(text, groupPath+"/reset") {
		t.Error("a group without a changed setting has a form for a reset")
	}
	s.a.Do(func() {
		s.a.Groups[0].Overrides = []*nstancev1.GroupOverride{{Path: "rollout.revision", Value: `"1"`},
			{Path: "size", Value: "7", Configured: "6", By: "alice"}}
	})
	if text := show(); !strings.Contains(text, groupPath+"/reset") || !strings.Contains(text, ": size 7 → 6.") {
		t.Errorf("there is no form for a reset in\n%s", text)
	}
	for _, test := range []struct {
		path string
		form url.Values
		to   string
		done func() bool
	}{
		{groupPath + "/pause", nil, groupPath + "?done=pause", func() bool { return s.a.Groups[0].GetPaused() }},
		{groupPath + "/resume", nil, groupPath + "?done=resume", func() bool { return !s.a.Groups[0].GetPaused() }},
		{groupPath + "/roll", nil, groupPath + "?done=roll", func() bool { return s.a.Groups[0].GetOutdated() == 6 }},
		{groupPath + "/scale", url.Values{"size": {"9"}}, groupPath + "?done=scale",
			func() bool { return s.a.Groups[0].GetSize() == 9 }},
		{groupPath + "/reset", nil, groupPath + "?done=reset", func() bool {
			return s.a.Groups[0].GetSize() == 6 && len(s.a.Groups[0].GetOverrides()) == 1
		}},
		{instancePath + "/delete", url.Values{"confirm": {"000000"}, "reason": {"it is slow"}},
			instancePath + "?done=delete", func() bool { return s.a.Instances[0].GetDeleteReason() == "it is slow" }},
	} {
		form := url.Values{"confirm": {"workers"}}
		maps.Copy(form, test.form)
		resp := s.do(t, request{method: http.MethodPost, path: test.path, form: form, header: header})
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != test.to {
			t.Errorf("%s: %s, %v, %v\n%s", test.path, resp.Status, resp.Header, err, text)
		}
		s.a.Do(func() {
			if !test.done() {
				t.Errorf("%s changed nothing", test.path)
			}
		})
	}
	for _, want := range []string{"change made", "who=olivia", "scale group workers of shard a to size 9"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, s.log)
		}
	}
	for path, want := range map[string]string{groupPath + "?done=pause": "The rollout is paused.",
		instancePath + "?done=delete": "The instance is being deleted.",
		groupPath:                     `action="` + groupPath + `/scale"`} {
		resp := s.do(t, request{path: path, header: header})
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: there is no %q in\n%s", path, want, text)
		}
	}
}

// TestRefusedActions checks that no change is made for a viewer, without a login, with a wrong confirmation, or to a
// missing group. A form or link on another site changes nothing either.
func TestRefusedActions(t *testing.T) {
	s := newSite(t, logins)
	operator, viewer := s.login(t, "olivias-token-of-24-chars"), s.login(t, "victors-token-of-24-chars")
	confirmed := url.Values{"confirm": {"workers"}, "size": {"9"}}
	for _, test := range []struct {
		name   string
		cookie *http.Cookie
		method string
		path   string
		form   url.Values
		header map[string]string
		status int
	}{
		{"viewer", viewer, "POST", groupPath + "/scale", confirmed, nil, 403},
		{"viewer deletes", viewer, "POST", instancePath + "/delete", url.Values{"confirm": {"000000"}}, nil, 403},
		{"no login", nil, "POST", groupPath + "/scale", confirmed, nil, 401},
		{"no confirmation", operator, "POST", groupPath + "/scale", url.Values{"size": {"9"}}, nil, 400},
		{"wrong confirmation", operator, "POST", groupPath + "/roll", url.Values{"confirm": {"worker"}}, nil, 400},
		{"deletes without confirmation", operator, "POST", instancePath + "/delete", url.Values{}, nil, 400},
		{"another site", operator, "POST", groupPath + "/scale", confirmed,
			map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"another origin", operator, "POST", groupPath + "/scale", confirmed,
			map[string]string{"Origin": "https://evil.example"}, 403},
		{"link", operator, "GET", groupPath + "/scale?confirm=workers&size=9", nil, nil, 404},
		{"confirmation in the address", operator, "POST", groupPath + "/scale?confirm=workers&size=9", url.Values{},
			nil, 400},
		{"no number", operator, "POST", groupPath + "/scale", url.Values{"confirm": {"workers"}, "size": {"-1"}}, nil,
			400},
		{"unknown action", operator, "POST", groupPath + "/stop", confirmed, nil, 404},
		{"unknown group", operator, "POST", "/ui/shards/a/groups/nobody/pause", url.Values{"confirm": {"nobody"}}, nil,
			404},
		{"unknown group scales", operator, "POST", "/ui/shards/a/groups/nobody/scale",
			url.Values{"confirm": {"nobody"}, "size": {"9"}}, nil, 404},
		{"unknown shard", operator, "POST", "/ui/shards/c/groups/workers/pause", confirmed, nil, 404},
	} {
		header := map[string]string{}
		if test.cookie != nil {
			header["Cookie"] = test.cookie.Name + "=" + test.cookie.Value
		}
		maps.Copy(header, test.header)
		resp := s.do(t, request{method: test.method, path: test.path, form: test.form, header: header})
		resp.Body.Close()
		if resp.StatusCode != test.status {
			t.Errorf("%s: %s, want %d", test.name, resp.Status, test.status)
		}
	}
	s.a.Do(func() {
		if g := s.a.Groups[0]; g.GetSize() != 7 || g.GetOutdated() != 0 || len(s.a.Upserts) > 0 ||
			s.a.Instances[0].GetState() != "registered" {
			t.Error("something was changed:", s.a.Groups, s.a.Instances)
		}
	})
	for _, path := range []string{groupPath, instancePath} {
		resp := s.do(t, request{path: path, header: map[string]string{"Cookie": viewer.Name + "=" + viewer.Value}})
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || strings.Contains(string(text), "confirm") {
			t.Errorf("%s has forms for a viewer", path)
		}
	}
}
