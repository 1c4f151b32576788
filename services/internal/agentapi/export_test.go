package agentapi

import "time"

// SetPatience shortens the time that an agent may take to read a batch.
func (s *Service) SetPatience(d time.Duration) { s.patience = d }
