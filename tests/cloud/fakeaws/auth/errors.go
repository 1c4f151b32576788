package auth

import (
	"errors"
	"net/http"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

var (
	errMismatch = errors.New("signature does not match")
	errSkewed   = errors.New("signature from another time")
	errExpired  = errors.New("session is over")
)

type answer struct {
	status        int
	code, message string
}

// answers maps the errors of this package to each service's own codes and messages. The entry "" is for the query
// protocol. Sources:
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
// https://docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html
var answers = map[string]map[error]answer{
	"": {
		errUnknown: {http.StatusForbidden, "InvalidClientTokenId",
			"The security token included in the request is invalid."},
		errMismatch: {http.StatusForbidden, "SignatureDoesNotMatch",
			"The request signature we calculated does not match the signature you provided."},
		errSkewed:  {http.StatusForbidden, "SignatureDoesNotMatch", "Signature expired, or not yet current."},
		errExpired: {http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired."},
	},
	"ec2": {
		errUnknown: {http.StatusUnauthorized, "AuthFailure",
			"AWS was not able to validate the provided access credentials."},
		errMismatch: {http.StatusUnauthorized, "AuthFailure",
			"AWS was not able to validate the provided access credentials."},
		errSkewed:  {http.StatusBadRequest, "RequestExpired", "Request has expired."},
		errExpired: {http.StatusBadRequest, "RequestExpired", "Request has expired."},
	},
	"s3": {
		errUnknown: {http.StatusForbidden, "InvalidAccessKeyId",
			"The AWS Access Key Id you provided does not exist in our records."},
		errMismatch: {http.StatusForbidden, "SignatureDoesNotMatch",
			"The request signature we calculated does not match the signature you provided. Check your key and " +
				"signing method."},
		errSkewed: {http.StatusForbidden, "RequestTimeTooSkewed",
			"The difference between the request time and the current time is too large."},
		errExpired: {http.StatusBadRequest, "ExpiredToken", "The provided token has expired."},
	},
	"ssm":            jsonAnswers,
	"secretsmanager": jsonAnswers,
}

var jsonAnswers = map[error]answer{
	errUnknown: {http.StatusBadRequest, "UnrecognizedClientException",
		"The security token included in the request is invalid."},
	errMismatch: {http.StatusBadRequest, "InvalidSignatureException",
		"The request signature we calculated does not match the signature you provided."},
	errSkewed: {http.StatusBadRequest, "InvalidSignatureException", "Signature expired, or not yet current."},
	errExpired: {http.StatusBadRequest, "ExpiredTokenException",
		"The security token included in the request is expired"},
}

func (s *Signature) failure(err error) error {
	service, ok := answers[s.Service]
	if !ok {
		service = answers[""]
	}
	a := service[err]
	return wire.Errorf(a.status, a.code, "%s", a.message)
}

// Unknown returns the service's error for a key that no longer exists because its role was deleted.
func (s *Signature) Unknown() error { return s.failure(errUnknown) }
