package server

import "time"

const (
	// startupTimeout bounds a request to the bucket while the shard's configuration, and with it request_timeout, is
	// not known.
	startupTimeout = 10 * time.Second
	// minListTimeout is the least time that a listing gets: it is one request for every thousand keys.
	minListTimeout = 30 * time.Second
	// maxBucketRequests is how many requests to the bucket may be in flight. The election's requests do not count.
	maxBucketRequests = 128
)

// requestTimeout is server.request_timeout of the configuration in force.
func (s *server) requestTimeout() time.Duration {
	if shard := s.manager.Shard(); shard != nil {
		return shard.Server.RequestTimeout.D()
	}
	return startupTimeout
}

// bucketTimeouts returns the time that one request to the bucket may take, and the time that one listing may take.
func (s *server) bucketTimeouts() (request, list time.Duration) {
	request = s.requestTimeout()
	return request, max(request, minListTimeout)
}
