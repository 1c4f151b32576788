package wire

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

// Page cuts a list into pages. It returns at most max items, or all items if max is 0. The page starts at token, or at
// the beginning if token is "". Page also returns the token of the next page, which is "" after the last one. Clients
// cannot interpret tokens. A token that Page did not make is the error InvalidNextToken.
func Page[T any](items []T, max int, token string) (page []T, next string, err error) {
	start := 0
	if token != "" {
		if start, err = offset(token); err != nil || start > len(items) {
			return nil, "", Errorf(http.StatusBadRequest, "InvalidNextToken", "The token %.60q is not valid", token)
		}
	}
	if max < 0 {
		return nil, "", Errorf(http.StatusBadRequest, "InvalidParameterValue", "A page of %d items is not possible",
			max)
	}
	items = items[start:]
	if max == 0 || len(items) <= max {
		return items, "", nil
	}
	return items[:max], tokenOf(start + max), nil
}

func tokenOf(start int) string {
	return base64.URLEncoding.EncodeToString([]byte("page:" + strconv.Itoa(start)))
}

func offset(token string) (int, error) {
	raw, err := base64.URLEncoding.DecodeString(token)
	if err != nil {
		return 0, err
	}
	digits, ok := strings.CutPrefix(string(raw), "page:")
	if !ok {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err == nil && tokenOf(int(n)) != token { // line breaks, padding bits, leading zeros
		err = strconv.ErrSyntax
	}
	return int(n), err
}
