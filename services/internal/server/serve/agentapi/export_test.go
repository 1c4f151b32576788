package agentapi

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// SetSendTimeout sets the time within which an agent must read a batch.
func (s *Service) SetSendTimeout(d time.Duration) { s.sendTimeout = d }

// TakeReports runs takeReports, the part of a health stream's handler that reads the reports.
func (s *Service) TakeReports(leader *Leadership, id ident.ID, number uint64, stream reports) error {
	return s.takeReports(&call{leader: leader, agent: s.boardOf(leader).agent(id)}, stream, number)
}
