package web

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Client is a person who is logged in.
type Client struct {
	Name string              `json:"name"`
	Role record.OperatorRole `json:"role"`
}

// MayChange reports whether the client may change something.
func (c Client) MayChange() bool { return c.Role.Includes(record.RoleOperator) }

const (
	cookieName = "nstance-session"
	// sessionTime is how long a login lasts.
	sessionTime = 12 * time.Hour
)

// session is the content of the cookie. It contains no token. So somebody who steals the cookie can use the page until
// the session expires, but cannot use the API.
type session struct {
	Client
	ID      string    `json:"id"` // random
	Expires time.Time `json:"expires"`
}

var errNoSession = errors.New("there is no valid session")

// seal returns the value of the cookie: the session and its authentication code.
func (p *page) seal(s session) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(p.sign(text)), nil
}

// open returns the session in the value of a cookie. It refuses a value that [page.seal] has not made.
func (p *page) open(value string) (s session, err error) {
	first, second, _ := strings.Cut(value, ".")
	text, err := base64.RawURLEncoding.DecodeString(first)
	if err != nil {
		return s, errNoSession
	}
	code, err := base64.RawURLEncoding.DecodeString(second)
	if err != nil || !hmac.Equal(code, p.sign(text)) || json.Unmarshal(text, &s) != nil {
		return s, errNoSession
	}
	if !p.Now().Before(s.Expires) || p.ended.has(s.ID) {
		return s, errNoSession
	}
	return s, nil
}

func (p *page) sign(text []byte) []byte {
	mac := hmac.New(sha256.New, p.key[:])
	mac.Write(text)
	return mac.Sum(nil)
}

// client returns the client that sent the request. A bearer token or the cookie of a login identifies the client. A
// proxy in front of the page may add the token.
func (p *page) client(r *http.Request) (Client, bool) {
	if p.Tokens == nil {
		return Client{"local", record.RoleOperator}, true
	}
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return p.holder(token)
	}
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return Client{}, false
	}
	s, err := p.open(cookie.Value)
	return s.Client, err == nil
}

// holder returns the client who holds a token. A token without a role is that of a viewer.
func (p *page) holder(token string) (Client, bool) {
	found, ok := p.Tokens.Find(pasted.Clean(token))
	return Client{found.Name, cmp.Or(found.Role, record.RoleViewer)}, ok
}

// setCookie makes the browser keep the value of a session for the duration `age`, or delete the value if `age` is
// negative.
func setCookie(w http.ResponseWriter, r *http.Request, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, Path: Path, MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"})
}

// login shows the form, or checks a token and starts a session.
func (p *page) login(w http.ResponseWriter, r *http.Request) error {
	view := loginView{To: localPath(r.FormValue("to"))}
	if p.Tokens == nil {
		http.Redirect(w, r, view.To, http.StatusSeeOther)
		return nil
	}
	if r.Method != http.MethodPost {
		return p.render(w, r, http.StatusOK, "login", "Log in", view)
	}
	client, ok := p.holder(r.PostFormValue("token"))
	if !ok {
		p.Log.Warn("login refused", "remote", r.RemoteAddr)
		view.Refused = true
		return p.render(w, r, http.StatusUnauthorized, "login", "Log in", view)
	}
	value, err := p.seal(session{client, rand.Text(), p.Now().Add(sessionTime)})
	if err != nil {
		return err
	}
	setCookie(w, r, value, sessionTime)
	p.Log.Info("login", "who", client.Name, "role", client.Role, "remote", r.RemoteAddr)
	http.Redirect(w, r, view.To, http.StatusSeeOther)
	return nil
}

type loginView struct {
	// To is the path to show after the login.
	To      string
	Refused bool
}

// endedSessions are the sessions that ended before their time. It is safe for concurrent use.
type endedSessions struct {
	mu       sync.Mutex
	sessions map[string]time.Time // when each expires, by ID
}

// add ends a session, and forgets those that have expired. Only a client with a session that is in force can call it.
func (e *endedSessions) add(s session, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions == nil {
		e.sessions = map[string]time.Time{}
	}
	maps.DeleteFunc(e.sessions, func(_ string, expires time.Time) bool { return !now.Before(expires) })
	e.sessions[s.ID] = s.Expires
}

func (e *endedSessions) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ended := e.sessions[id]
	return ended
}

// logout ends the session: its cookie is of no more use, also in another browser.
func (p *page) logout(w http.ResponseWriter, r *http.Request) error {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if s, err := p.open(cookie.Value); err == nil {
			p.ended.add(s, p.Now())
		}
	}
	setCookie(w, r, "", -time.Second)
	http.Redirect(w, r, Path+"login", http.StatusSeeOther)
	return nil
}

// localPath returns the given path if it is a path of this page (prefix [Path]), and otherwise the start page. Without
// this check, a link to the login could send the person to another site after the login.
func localPath(path string) string {
	if !strings.HasPrefix(path, Path) || strings.ContainsAny(path, "\\\r\n") {
		return Path
	}
	return path
}
