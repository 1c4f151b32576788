// Package rest serves a Google REST API from its discovery document: it routes requests to methods, and checks requests
// and answers against the document. What the methods do is up to the handlers.
//
// Invariant: a request with a field that the API does not have is refused. An answer with such a field panics.
package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// Handler answers a call. The answer is encoded as JSON, unless it is a [Media]. An error is an [*Error].
type Handler func(*Call) (any, error)

// Call is one request.
type Call struct {
	Method   string            // such as "compute.instances.insert"
	Params   map[string]string // path parameters
	Query    url.Values
	Body     map[string]any // nil if there is none
	Media    []byte         // of an upload
	Identity string         // the caller's email
	Host     string         // of the request, for URLs in answers

	checks []Check
}

// Media is an answer other than JSON.
type Media struct {
	Header http.Header
	Body   []byte
}

// Error is an error answer.
type Error struct {
	Code            int
	Reason, Status  string
	Message         string
	PlainText       bool // the body is only the message, as for downloads from storage
	AbortConnection bool // there is no answer
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// NotFound returns the error about a resource that does not exist.
func NotFound(format string, args ...any) *Error {
	return &Error{Code: http.StatusNotFound, Reason: "notFound", Status: "NOT_FOUND",
		Message: fmt.Sprintf(format, args...)}
}

// Record describes one call that the server has answered.
type Record struct {
	Method, Identity, Path string
	Code                   int
	Checks                 []Check
}

// Check is a permission that a call needs, with the decision whether the caller has it.
type Check struct {
	Permission, Resource string
	Allowed              bool
}

// Server serves one API.
type Server struct {
	document *document
	handlers map[string]Handler
	identify func(*http.Request) (string, error)

	// Authorize returns the permissions that a call needs, each with the decision whether the caller has it. It runs
	// before the handler. If it is nil, every call is allowed.
	Authorize func(*Call) []Check

	mu     sync.Mutex
	ledger []Record
	faults []*fault
}

// New makes the server of one version of an API, such as version "v1" of "compute". identify returns the caller of a
// request, or an error if the request's token is wrong. A nil identify accepts everybody.
func New(api, version string, handlers map[string]Handler, identify func(*http.Request) (string, error)) (*Server,
	error) {
	d, err := readDocument(api, version)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, m := range d.methods {
		known[m.ID] = true
	}
	for id := range handlers {
		if !known[id] {
			return nil, fmt.Errorf("%s has no method %s", api, id)
		}
	}
	return &Server{document: d, handlers: handlers, identify: identify}, nil
}

// Calls returns the ledger.
func (s *Server) Calls() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Record(nil), s.ledger...)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code := http.StatusOK
	m, params, upload := s.document.find(r.Method, r.URL.EscapedPath())
	call := &Call{Params: params, Query: r.URL.Query(), Host: r.Host}
	answer, err := any(nil), error(NotFound("The requested URL %s was not found on this server.", r.URL.Path))
	if m != nil {
		call.Method = m.ID
		answer, err = s.answer(m, call, r, upload)
	}
	var refusal *Error
	if errors.As(err, &refusal) {
		code = refusal.Code
	} else if err != nil {
		refusal = &Error{Code: http.StatusInternalServerError, Reason: "backendError", Message: err.Error()}
		code = refusal.Code
	}
	s.mu.Lock()
	s.ledger = append(s.ledger, Record{call.Method, call.Identity, r.URL.Path, code, call.checks})
	s.mu.Unlock()
	if refusal != nil {
		writeError(w, refusal)
		return
	}
	if media, ok := answer.(Media); ok {
		for name, values := range media.Header {
			w.Header()[name] = values
		}
		_, _ = w.Write(media.Body)
		return
	}
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	if m.Response != nil {
		var value any
		if err := decode(text, &value); err != nil {
			panic(err)
		}
		if err := s.document.check(m.Response.Ref, m.Response, value); err != nil {
			panic(fmt.Sprintf("the answer of %s is invalid: %v\n%s", m.ID, err, text))
		}
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	if m.Response == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_, _ = w.Write(text)
}

func (s *Server) answer(m *method, call *Call, r *http.Request, upload bool) (any, error) {
	var err error
	if s.identify != nil {
		if call.Identity, err = s.identify(r); err != nil {
			return nil, &Error{Code: http.StatusUnauthorized, Reason: "authError", Status: "UNAUTHENTICATED",
				Message: err.Error()}
		}
	}
	if err := s.document.checkParams(m, call.Params, call.Query); err != nil {
		return nil, err
	}
	if err := s.readBody(m, call, r, upload); err != nil {
		return nil, err
	}
	handler := s.handlers[m.ID]
	if handler == nil {
		return nil, &Error{Code: http.StatusNotImplemented, Reason: "notImplemented",
			Message: "the fake cloud does not implement " + m.ID}
	}
	if s.Authorize != nil {
		call.checks = s.Authorize(call)
	}
	for _, check := range call.checks {
		if !check.Allowed {
			return nil, &Error{Code: http.StatusForbidden, Reason: "forbidden", Status: "PERMISSION_DENIED",
				Message: fmt.Sprintf("Required '%s' permission for '%s'", check.Permission, check.Resource)}
		}
	}
	fault := s.takeFault(m.ID)
	if fault == nil {
		return handler(call)
	}
	if fault.before != nil {
		return nil, fault.before
	}
	if _, err := handler(call); err != nil {
		return nil, err
	}
	return nil, &Error{AbortConnection: true}
}

// readBody reads the JSON body, or the two parts of an upload, and checks the JSON.
func (s *Server) readBody(m *method, call *Call, r *http.Request, upload bool) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return invalid("read body: %v", err)
	}
	if upload {
		if body, call.Media, err = splitUpload(r, body); err != nil {
			return invalid("%v", err)
		}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if err := decode(body, &call.Body); err != nil {
		return &Error{Code: http.StatusBadRequest, Reason: "parseError", Status: "INVALID_ARGUMENT",
			Message: "Invalid JSON payload received. " + err.Error()}
	}
	if m.Request == nil {
		return invalid("%s takes no body", m.ID)
	}
	return s.document.check(m.Request.Ref, m.Request, anyMap(call.Body))
}

func anyMap(m map[string]any) any { return m }

func splitUpload(r *http.Request, body []byte) (object, media []byte, err error) {
	if r.URL.Query().Get("uploadType") != "multipart" {
		return nil, nil, errors.New("the fake cloud has multipart uploads only")
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, nil, err
	}
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for _, to := range []*[]byte{&object, &media} {
		part, err := parts.NextPart()
		if err != nil {
			return nil, nil, err
		}
		if *to, err = io.ReadAll(part); err != nil {
			return nil, nil, err
		}
	}
	return object, media, nil
}

func decode(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(to)
}

func writeError(w http.ResponseWriter, e *Error) {
	switch {
	case e.AbortConnection:
		panic(http.ErrAbortHandler)
	case e.PlainText:
		w.Header().Set("Content-Type", "text/html; charset=UTF-8")
		w.WriteHeader(e.Code)
		fmt.Fprint(w, e.Message)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(e.Code)
	detail := map[string]string{"domain": "global", "reason": e.Reason, "message": e.Message}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": e.Code, "message": e.Message,
		"status": e.Status, "errors": []any{detail}}})
}

// fault changes the outcome of the next call of a method.
type fault struct {
	method string
	before *Error // refuse the call; nil: make the call and lose the answer
}

// Refuse makes the next call of a method fail without effect.
func (s *Server) Refuse(method string, with *Error) { s.addFault(&fault{method, with}) }

// LoseAnswer makes the next call of a method take effect. Then it cuts the connection instead of sending the answer.
func (s *Server) LoseAnswer(method string) { s.addFault(&fault{method, nil}) }

func (s *Server) addFault(f *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

func (s *Server) takeFault(method string) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.faults {
		if f.method == method {
			s.faults = append(s.faults[:i], s.faults[i+1:]...)
			return f
		}
	}
	return nil
}

// Count returns the number of calls of a method.
func (s *Server) Count(method string) (n int) {
	for _, record := range s.Calls() {
		if record.Method == method {
			n++
		}
	}
	return n
}

// Text returns the text in a nested field of a body. The path lists the names of the fields from the outermost to the
// innermost. If there is no text, Text returns "".
func Text(body map[string]any, path ...string) string {
	var value any = body
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	switch value := value.(type) {
	case string:
		return value
	case json.Number:
		return strings.TrimSpace(value.String())
	}
	return ""
}
