package web

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
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
	Name string
	Role record.OperatorRole
}

// MayChange reports whether the client may change something.
func (c Client) MayChange() bool { return c.Role.Includes(record.RoleOperator) }

const (
	cookieName = "nstance-session"
	// sessionTime is how long a login lasts.
	sessionTime = 12 * time.Hour
)

// sessions are the logins that are in force. The cookie of a session is a random text, and no token. So somebody who
// steals the cookie can use the page until the session expires, but cannot use the API. It is safe for concurrent use.
type sessions struct {
	mu       sync.Mutex
	byCookie map[[sha256.Size]byte]session // by the hash of the cookie
}

type session struct {
	client  Client
	expires time.Time
}

// begin begins a session and returns its cookie. It forgets the sessions that have expired.
func (s *sessions) begin(client Client, now time.Time) (cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byCookie == nil {
		s.byCookie = map[[sha256.Size]byte]session{}
	}
	maps.DeleteFunc(s.byCookie, func(_ [sha256.Size]byte, one session) bool { return !now.Before(one.expires) })
	cookie = rand.Text()
	s.byCookie[sha256.Sum256([]byte(cookie))] = session{client, now.Add(sessionTime)}
	return cookie
}

// find returns the client of the session with a cookie.
func (s *sessions) find(cookie string, now time.Time) (Client, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byCookie[sha256.Sum256([]byte(cookie))]
	return found.client, ok && now.Before(found.expires)
}

// end ends the session with a cookie.
func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byCookie, sha256.Sum256([]byte(cookie)))
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
	return p.sessions.find(cookie.Value, p.Now())
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
	setCookie(w, r, p.sessions.begin(client, p.Now()), sessionTime)
	p.Log.Info("login", "who", client.Name, "role", client.Role, "remote", r.RemoteAddr)
	http.Redirect(w, r, view.To, http.StatusSeeOther)
	return nil
}

type loginView struct {
	// To is the path to show after the login.
	To      string
	Refused bool
}

// logout ends the session: its cookie is of no more use, also in another browser.
func (p *page) logout(w http.ResponseWriter, r *http.Request) error {
	if cookie, err := r.Cookie(cookieName); err == nil {
		p.sessions.end(cookie.Value)
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
