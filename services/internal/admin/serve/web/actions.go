package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// confirmLength is how many of the last characters of an instance ID a person types to confirm a deletion.
const confirmLength = 6

// change works like p.read, but refuses clients that may only read. `do` makes the change. `do` returns a description
// for the log, and the address to which the browser goes afterwards.
func (p *page) change(do func(*http.Request) (detail, to string, err error)) http.HandlerFunc {
	return p.read(func(w http.ResponseWriter, r *http.Request) error {
		client := clientOf(r)
		log := p.Log.With("who", client.Name, "remote", r.RemoteAddr, "path", r.URL.Path)
		if !client.MayChange() {
			log.Warn("change refused", "error", "the role is "+string(client.Role))
			return &httpError{http.StatusForbidden, "You may look and not change anything.",
				"The role of your token is viewer. Log in with a token of an operator."}
		}
		detail, to, err := do(r)
		if err != nil {
			log.Warn("change refused", "detail", detail, "error", err)
			return err
		}
		log.Info("change made", "detail", detail)
		http.Redirect(w, r, to, http.StatusSeeOther)
		return nil
	})
}

// changeGroup scales or resets a group, or pauses, resumes or starts its rollout.
func (p *page) changeGroup(r *http.Request) (detail, to string, err error) {
	shard, name, err := p.groupOf(r)
	if err != nil {
		return "", "", err
	}
	action := r.PathValue("action")
	detail = fmt.Sprintf("%s group %s of shard %s", action, name, shard)
	if err := confirm(r, name); err != nil {
		return detail, "", err
	}
	only := []string{shard}
	switch action {
	case "pause":
		err = errorOf(fleet.Call(r.Context(), p.Fleet, only, fleet.Client.PauseGroup,
			&nstancev1.PauseGroupRequest{Group: name}))
	case "resume":
		err = errorOf(fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ResumeGroup,
			&nstancev1.ResumeGroupRequest{Group: name}))
	case "roll":
		err = errorOf(fleet.Call(r.Context(), p.Fleet, only, fleet.Client.RollGroup,
			&nstancev1.RollGroupRequest{Group: name}))
	case "reset":
		reset, resetErr := fleet.NewReset(name)
		if resetErr != nil {
			return detail, "", resetErr
		}
		err = errorOf(p.Fleet.Edit(r.Context(), only, reset))
	case "scale":
		size, parseErr := strconv.ParseUint(r.PostFormValue("size"), 10, 31)
		if parseErr != nil {
			return detail, "", &httpError{http.StatusBadRequest, "The size is not a number of instances.",
				"Go back and type a number from 0 to 2147483647."}
		}
		detail = fmt.Sprintf("%s to size %d", detail, size)
		err = errorOf(p.Fleet.Edit(r.Context(), only, fleet.Scaling{Group: name, Size: int(size)}))
	default:
		return detail, "", &httpError{http.StatusNotFound, "There is no such action.", ""}
	}
	return detail, groupPath(shard, name) + "?done=" + url.QueryEscape(action), err
}

// changeInstance deletes an instance, or ends the preservation of a failed one.
func (p *page) changeInstance(r *http.Request) (detail, to string, err error) {
	shard, id, err := p.instanceOf(r)
	if err != nil {
		return "", "", err
	}
	action := r.PathValue("action")
	detail = fmt.Sprintf("%s instance %s of shard %s", action, id, shard)
	if err := confirm(r, lastCharacters(id)); err != nil {
		return detail, "", err
	}
	only := []string{shard}
	switch action {
	case "delete":
		reason := strings.TrimSpace(r.PostFormValue("reason"))
		if reason == "" {
			reason = "deleted on the page by " + clientOf(r).Name
		}
		err = errorOf(fleet.Call(r.Context(), p.Fleet, only, fleet.Client.DeleteInstance,
			&nstancev1.DeleteInstanceRequest{InstanceId: id.String(), Reason: reason}))
	case "release":
		err = errorOf(fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ReleaseInstance,
			&nstancev1.ReleaseInstanceRequest{InstanceId: id.String()}))
	default:
		return detail, "", &httpError{http.StatusNotFound, "There is no such action.", ""}
	}
	return detail, instancePath(shard, id.String()) + "?done=" + url.QueryEscape(action), err
}

func lastCharacters(id ident.ID) string {
	text := id.String()
	return text[len(text)-confirmLength:]
}

// confirm checks what the person typed to confirm a change.
func confirm(r *http.Request, want string) error {
	if strings.TrimSpace(r.PostFormValue("confirm")) == want {
		return nil
	}
	return &httpError{http.StatusBadRequest, "Nothing was changed: the confirmation is not right.",
		fmt.Sprintf("Go back and type %q to confirm.", want)}
}

func errorOf[T fleet.Result](answers []T) error {
	if failed := fleet.Failed(answers); len(failed) > 0 {
		return failed[0]
	}
	return nil
}

// doneText returns the message to show after a change. action comes from the page's address, which other sites can
// forge. For an unknown action, doneText returns "".
func doneText(action string) string {
	return map[string]string{
		"pause": "The rollout is paused.", "resume": "The rollout goes on.",
		"roll": "The rollout has begun.", "scale": "The size was changed.",
		"reset": "The values of the configuration apply again.", "delete": "The instance is being deleted.",
		"release": "The instance is released: it is being deleted.",
	}[action]
}
