package bench

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// This file serves the bucket and the provider over HTTP to a server in another process. The bucket implements the S3
// requests that the SDK makes. So the server's cost per request is that of a real cloud, except for TLS.

const bucketName, providerPath = "bench", "/provider/"

// edges serves a bucket and a provider over HTTP.
type edges struct {
	store    objstore.Store
	provider infra.Provider
}

func (e edges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if op, ok := strings.CutPrefix(r.URL.Path, providerPath); ok {
		e.serveProvider(w, r, op)
		return
	}
	e.serveBucket(w, r)
}

func (e edges) serveBucket(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+bucketName), "/")
	etag := func(token objstore.Token) string { return `"` + string(token) + `"` }
	var err error
	switch {
	case r.Method == http.MethodGet && key == "":
		err = e.list(w, r)
	case r.Method == http.MethodGet:
		var object objstore.Object
		if object, err = e.store.Get(r.Context(), key); err == nil {
			w.Header().Set("ETag", etag(object.Token))
			_, _ = w.Write(object.Body)
		}
	case r.Method == http.MethodPut:
		cond := objstore.Always()
		if match := r.Header.Get("If-Match"); match != "" {
			cond = objstore.IfToken(objstore.Token(strings.Trim(match, `"`)))
		} else if r.Header.Get("If-None-Match") != "" {
			cond = objstore.IfAbsent()
		}
		var body []byte
		if body, err = io.ReadAll(r.Body); err == nil {
			var token objstore.Token
			if token, err = e.store.Put(r.Context(), key, body, cond); err == nil {
				w.Header().Set("ETag", etag(token))
			}
		}
	case r.Method == http.MethodDelete:
		if err = e.store.Delete(r.Context(), key); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		err = fmt.Errorf("%s is not served", r.Method)
	}
	refuse := func(status int, code string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
	}
	switch {
	case err == nil:
	case errors.Is(err, objstore.ErrNotFound):
		refuse(http.StatusNotFound, "NoSuchKey")
	case errors.Is(err, objstore.ErrConflict):
		refuse(http.StatusPreconditionFailed, "PreconditionFailed")
	default:
		refuse(http.StatusInternalServerError, "InternalError")
	}
}

func (e edges) list(w http.ResponseWriter, r *http.Request) error {
	entries, err := e.store.List(r.Context(), r.URL.Query().Get("prefix"))
	if err != nil {
		return err
	}
	type content struct {
		Key, ETag    string
		Size         int64
		LastModified string
	}
	var result struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []content
	}
	for _, entry := range entries {
		result.Contents = append(result.Contents, content{entry.Key, `"` + string(entry.Token) + `"`, entry.Size,
			entry.Modified.UTC().Format(time.RFC3339)})
	}
	w.Header().Set("Content-Type", "application/xml")
	return xml.NewEncoder(w).Encode(result)
}

// vmCall is one call of the provider, and vmAnswer is the answer.
type vmCall struct {
	Request    plainRequest
	ProviderID string
	Owner      infra.Owner
	Instance   ident.ID
}

// plainRequest is a create request that can be marshalled. A benchmark has no secrets to protect.
type plainRequest infra.CreateRequest

type vmAnswer struct {
	VM    infra.VM
	VMs   []infra.VM
	Class infra.Class
	Error string
}

func (e edges) serveProvider(w http.ResponseWriter, r *http.Request, op string) {
	var call vmCall
	var answer vmAnswer
	err := json.NewDecoder(r.Body).Decode(&call)
	if err == nil {
		switch op {
		case "create":
			answer.VM, err = e.provider.Create(r.Context(), infra.CreateRequest(call.Request))
		case "delete":
			err = e.provider.Delete(r.Context(), infra.Target(call.Owner, call.Instance, call.ProviderID))
		case "get":
			answer.VM, err = e.provider.Get(r.Context(), call.ProviderID)
		case "list":
			answer.VMs, err = e.provider.List(r.Context(), call.Owner)
		case "find":
			answer.VM, err = e.provider.FindByInstance(r.Context(), call.Owner, call.Instance)
		}
	}
	if err != nil {
		answer.Class, answer.Error = infra.ClassOf(err), err.Error()
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// distant is the provider that the server's process uses. It calls the benchmark's provider over HTTP.
type distant struct {
	url    string
	client *http.Client
}

var _ infra.Provider = distant{}

func (d distant) call(ctx context.Context, op string, call vmCall) (answer vmAnswer, err error) {
	body, err := json.Marshal(call)
	if err != nil {
		return answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+providerPath+op,
		strings.NewReader(string(body)))
	if err != nil {
		return answer, err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return answer, infra.Wrap(infra.Indeterminate, op, err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return answer, infra.Wrap(infra.Indeterminate, op, err)
	}
	if answer.Class != "" {
		return answer, infra.Wrap(answer.Class, op, errors.New(answer.Error))
	}
	// All clients of the benchmarks call from this address. As on EC2, the leader knows it from the create call on.
	answer.VM.Addresses = []string{"127.0.0.1"}
	for i := range answer.VMs {
		answer.VMs[i].Addresses = answer.VM.Addresses
	}
	return answer, nil
}

func (d distant) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	answer, err := d.call(ctx, "create", vmCall{Request: plainRequest(req)})
	return answer.VM, err
}

func (d distant) Delete(ctx context.Context, vm infra.VM) error {
	_, err := d.call(ctx, "delete",
		vmCall{Owner: vm.Tags.Owner, Instance: vm.Tags.Instance, ProviderID: vm.ProviderID})
	return err
}

func (d distant) Get(ctx context.Context, providerID string) (infra.VM, error) {
	answer, err := d.call(ctx, "get", vmCall{ProviderID: providerID})
	return answer.VM, err
}

func (d distant) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	answer, err := d.call(ctx, "list", vmCall{Owner: owner})
	return answer.VMs, err
}

func (d distant) FindByInstance(ctx context.Context, owner infra.Owner, id ident.ID) (infra.VM, error) {
	answer, err := d.call(ctx, "find", vmCall{Owner: owner, Instance: id})
	return answer.VM, err
}
