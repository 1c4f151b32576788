package agentapi

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// SetPatience shortens the time that an agent may take to read a batch.
func (s *Service) SetPatience(d time.Duration) { s.patience = d }

// Read is what the goroutine of a health stream does for as long as the stream lasts.
func (s *Service) Read(leader *Leader, id ident.ID, number uint64, stream reports) error {
	return s.read(&call{leader: leader, agent: s.boardOf(leader).agent(id)}, stream, number)
}
