package agent

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

const (
	// addressesFile is the name of a file in the identity folder. It contains the addresses of the agent service that a
	// leader announced last: host:port separated by commas. The agent reads the file when it starts, because the
	// leader's address may have changed since the VM booted.
	addressesFile = "servers"
	// maxAddrs limits the number of announced addresses, and maxAddrsText the length of their text.
	maxAddrs, maxAddrsText = 8, 1024
	// configuredEvery is 4: while no announced address answers, every fourth try goes to a configured address.
	configuredEvery = 4
)

// storeAddrs stores the addresses that a leader announced. It ignores an empty or invalid list.
func (c *Client) storeAddrs(text string) {
	addrs, err := parseAnnounced(text)
	if err != nil {
		c.Log.Debug("The server announced no addresses", "error", err)
		return
	}
	c.mu.Lock()
	same := slices.Equal(c.announced, addrs)
	c.announced = addrs
	c.mu.Unlock()
	if same {
		return
	}
	c.Log.Info("The leader's addresses have changed", "addresses", addrs)
	if err := c.Identity.Write(addressesFile, []byte(strings.Join(addrs, ",")+"\n"), c.IdentityMode); err != nil {
		c.Log.Error("The leader's addresses were not stored: a restarted agent may not find the leader", "error", err)
	}
}

// loadAddrs reads the stored addresses. If none are stored, the agent uses the configured addresses.
func (c *Client) loadAddrs() {
	text, err := c.Identity.Read(addressesFile)
	if err == nil {
		var addrs []string
		if addrs, err = parseAnnounced(string(text)); err == nil {
			c.mu.Lock()
			c.announced = addrs
			c.mu.Unlock()
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("The stored addresses of the leader cannot be used", "error", err)
	}
}

// announcedAddrs returns the addresses that a leader announced last, or nil.
func (c *Client) announcedAddrs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.announced
}

// parseAnnounced parses a list of addresses from a leader or from the agent's own file.
func parseAnnounced(text string) ([]string, error) {
	if len(text) > maxAddrsText {
		return nil, errors.New("the list of addresses is too long")
	}
	addrs, err := endpoints.ParseAddrs(text)
	if err == nil && len(addrs) > maxAddrs {
		return nil, errors.New("there are too many addresses")
	}
	return addrs, err
}

// candidates returns the addresses to try next: usually the addresses that a leader announced. It returns the
// configured addresses if no leader has announced any, and at every fourth try. tries counts the tries since the last
// session.
func (c *Client) candidates(tries int) []string {
	announced := c.announcedAddrs()
	if len(announced) == 0 || tries%configuredEvery == configuredEvery-1 {
		return c.AgentAddrs
	}
	return announced
}
