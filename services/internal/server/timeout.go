package server

import "time"

const (
	// startupTimeout bounds a bucket request while the shard's configuration, which contains request_timeout, is
	// unknown.
	startupTimeout = 30 * time.Second
	// minListTimeout is the minimum timeout of a listing, which needs one request per thousand keys.
	minListTimeout = 30 * time.Second
	// maxBucketRequests is the maximum number of concurrent bucket requests. The election's requests do not count.
	maxBucketRequests = 128
)

// requestTimeout returns server.request_timeout of the configuration in force, or startupTimeout before there is one.
func (s *server) requestTimeout() time.Duration {
	if shard := s.manager.Shard(); shard != nil {
		return shard.Server.RequestTimeout.D()
	}
	return startupTimeout
}

// bucketTimeouts returns the timeout of one request to the bucket and that of one listing.
func (s *server) bucketTimeouts() (request, list time.Duration) {
	request = s.requestTimeout()
	return request, max(request, minListTimeout)
}
