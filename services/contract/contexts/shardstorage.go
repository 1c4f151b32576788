package contexts

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// ShardStorage is the bucket of a shard whose documents are not in the cluster's bucket.
type ShardStorage struct {
	config.Storage

	PathStyle bool   // the bucket is in the path of URLs, not in the host
	Profile   string // in the configuration files of the cloud's tools
}

// ParseShardStorage reads the setting "shard-storage": `shard=PROVIDER://BUCKET/PREFIX?region=…,…`. The query may have
// region, endpoint, path_style and profile. With the provider file, the path is that of the directory, and the query
// may have a prefix.
func ParseShardStorage(text string) (map[string]ShardStorage, error) {
	found := map[string]ShardStorage{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		shard, at, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want shard=PROVIDER://BUCKET", part)
		}
		if err := ident.ValidateName(shard); err != nil {
			return nil, fmt.Errorf("%q: shard: %w", part, err)
		}
		if _, twice := found[shard]; twice {
			return nil, fmt.Errorf("shard %s has two buckets", shard)
		}
		storage, err := parseStorage(at)
		if err != nil {
			return nil, fmt.Errorf("bucket of shard %s: %q: %w", shard, at, err)
		}
		found[shard] = storage
	}
	return found, nil
}

func parseStorage(text string) (s ShardStorage, err error) {
	at, err := url.Parse(text)
	if err != nil {
		return s, errors.New("it is no URL: want PROVIDER://BUCKET")
	}
	query, err := url.ParseQuery(at.RawQuery)
	if err != nil {
		return s, err
	}
	s.Provider, s.Bucket, s.Prefix = at.Scheme, at.Host, strings.TrimPrefix(at.Path, "/")
	if err := oneOf(config.ObjectStoreNames)(s.Provider); err != nil {
		return s, fmt.Errorf("the provider %w", err)
	}
	if s.Provider == "file" {
		s.Bucket, s.Prefix = at.Host+at.Path, query.Get("prefix")
		query.Del("prefix")
	}
	if s.Bucket == "" {
		return s, errors.New("the bucket is missing: want PROVIDER://BUCKET")
	}
	s.Region, s.Endpoint, s.Profile = query.Get("region"), query.Get("endpoint"), query.Get("profile")
	if style := query.Get("path_style"); style != "" {
		if s.PathStyle, err = strconv.ParseBool(style); err != nil {
			return s, fmt.Errorf("path_style: %w", err)
		}
	}
	known := []string{"endpoint", "path_style", "profile", "region"}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(known, name) {
			return s, fmt.Errorf("there is no %q: there are %s", name, strings.Join(known, ", "))
		}
	}
	return s, nil
}

// FormatShardStorage is the reverse of [ParseShardStorage].
func FormatShardStorage(storage map[string]ShardStorage) string {
	var parts []string
	for _, shard := range slices.Sorted(maps.Keys(storage)) {
		s := storage[shard]
		at, query := url.URL{Scheme: s.Provider, Host: s.Bucket, Path: s.Prefix}, url.Values{}
		set := func(name, value string) {
			if value != "" {
				query.Set(name, value)
			}
		}
		if s.Provider == "file" {
			at.Host, at.Path = "", s.Bucket
			set("prefix", s.Prefix)
		} else if s.Prefix != "" {
			at.Path = "/" + s.Prefix
		}
		set("region", s.Region)
		set("endpoint", s.Endpoint)
		set("profile", s.Profile)
		if s.PathStyle {
			set("path_style", strconv.FormatBool(true))
		}
		at.RawQuery = query.Encode()
		parts = append(parts, shard+"="+strings.ReplaceAll(at.String(), ",", "%2C"))
	}
	return strings.Join(parts, ",")
}
