package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// documented lists, by class, the codes that calls of this package can return. The codes are from AWS's lists of EC2
// error codes.
var documented = map[infra.Class]string{
	infra.NotFound: `InvalidInstanceID.NotFound InvalidNetworkInterfaceID.NotFound InvalidNetworkInterface.NotFound InvalidSubnetID.NotFound InvalidAMIID.NotFound
		InvalidGroup.NotFound InvalidKeyPair.NotFound InvalidAttachmentID.NotFound InvalidSnapshot.NotFound InvalidSecurityGroupID.NotFound
		InvalidPlacementGroup.Unknown|Invalid InvalidLaunchTemplateId.NotFound InvalidLaunchTemplateName.NotFoundException InvalidHostID.NotFound
		InvalidCapacityReservationId.NotFound InvalidReservationID.NotFound TargetGroupNotFound`,
	infra.Conflict: `IdempotentParameterMismatch IdempotentInstanceTerminated IncorrectInstanceState`,
	infra.Capacity: `InsufficientInstanceCapacity InsufficientFreeAddressesInSubnet InsufficientHostCapacity InsufficientReservedInstanceCapacity
		InsufficientReservedInstancesCapacity InsufficientCapacity InsufficientCapacityOnHost InsufficientVolumeCapacity InsufficientAddressCapacity
		InstanceLimitExceeded VcpuLimitExceeded MaxSpotInstanceCountExceeded SpotMaxPriceTooLow UnfulfillableCapacity Unsupported VolumeLimitExceeded
		MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded PrivateIpAddressLimitExceeded VolumeTypeNotAvailableInZone ReservationCapacityExceeded
		HostLimitExceeded`,
	infra.Throttled: `RequestLimitExceeded Throttling ThrottlingException EC2ThrottledException PriorRequestNotComplete RequestThrottled ResourceLimitExceeded`,
	infra.Denied: `UnauthorizedOperation AuthFailure Blocked PendingVerification OptInRequired InvalidClientTokenId MissingAuthenticationToken IncompleteSignature
		SignatureDoesNotMatch ExpiredToken RequestExpired AccessDenied AccessDeniedException NotAuthorized OperationNotPermitted UnrecognizedClientException
		UnauthorizedOperation.Ami`,
	infra.Invalid: `InvalidParameter InvalidParameterValue InvalidParameterCombination InvalidParameterDependency InvalidAMIID.Malformed InvalidAMIID.Unavailable
		InvalidSubnet InvalidSubnet.Range InvalidSubnetConflict InvalidInstanceID.Malformed InvalidInterface.IpAddressLimitExceeded InvalidBlockDeviceMapping
		InvalidIamInstanceProfileName InvalidIPAddress.InUse InvalidNetworkInterface.InUse InvalidUserData.Malformed InvalidZone.NotFound|NotFound
		InvalidGroupId.Malformed InvalidGroup.InUse InvalidAction InvalidQueryParameter InvalidCharacter InvalidPaginationToken InvalidTarget MalformedQueryString MissingAction
		MissingParameter UnknownParameter UnsupportedOperation UnsupportedHibernationConfiguration ValidationError IncorrectState
		DependencyViolation AttachmentLimitExceeded TagLimitExceeded EncryptedVolumesNotSupported NonEBSInstance VPCIdNotSpecified VPCResourceNotSpecified
		DryRunOperation`,
	infra.Indeterminate: `InternalError InternalFailure Unavailable ServiceUnavailable RequestTimeout Server.Unheard`,
}

func TestDocumentedCodes(t *testing.T) {
	n := 0
	for class, codes := range documented {
		for _, code := range strings.Fields(codes) {
			n++
			want := class
			if c, other, ok := strings.Cut(code, "|"); ok {
				code, want = c, map[string]infra.Class{"Invalid": infra.Invalid, "NotFound": infra.NotFound}[other]
			}
			status := http.StatusBadRequest
			switch want {
			case infra.Indeterminate:
				status = http.StatusInternalServerError
			case infra.Denied:
				status = http.StatusForbidden
			case infra.Throttled:
				status = http.StatusServiceUnavailable
			}
			if got := classOf(code, status); got != want {
				t.Errorf("%s with status %d is %q, want %q", code, status, got, want)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d codes", n)
	}
	for code := range classes {
		if !slices.ContainsFunc([]int{400, 403, 500, 503, 0}, func(status int) bool {
			return classOf(code, status) == classes[code]
		}) {
			t.Errorf("%s is not a class by itself", code)
		}
	}
}

func TestUnknownCodesAreClassifiedByStatus(t *testing.T) {
	for status, want := range map[int]infra.Class{400: infra.Invalid, 401: infra.Denied, 403: infra.Denied,
		404: infra.Invalid, 408: infra.Indeterminate, 429: infra.Throttled,
		500: infra.Indeterminate, 503: infra.Indeterminate, 0: infra.Indeterminate, 200: infra.Indeterminate} {
		if got := classOf("NeverHeardOf", status); got != want {
			t.Errorf("status %d is %q, want %q", status, got, want)
		}
	}
}

// scripted is an endpoint that gives the scripted answers in order. It repeats the last answer.
type scripted struct {
	url   string
	calls atomic.Int64
	forms []string
	mu    sync.Mutex
}

func script(t *testing.T, answers ...http.HandlerFunc) *scripted {
	t.Helper()
	s := &scripted{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(s.calls.Add(1)) - 1
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.forms = append(s.forms, string(body))
		s.mu.Unlock()
		answers[min(n, len(answers)-1)](w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func failure(status int, code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w,
			`<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>req-1</RequestID></Response>`, code, message)
	}
}

func page(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func made(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w,
		`<RunInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><instancesSet><item><instanceId>i-1</instanceId>
		<instanceState><name>pending</name></instanceState><launchTime>2030-01-02T03:04:05.000Z</launchTime></item></instancesSet></RunInstancesResponse>`)
}

// against makes a provider whose real SDK clients call the endpoint url.
func against(t *testing.T, url string, throttled func(string)) *Provider {
	t.Helper()
	cfg, err := SDK(t.Context(), config.Provider{Region: "us-west-2"}, throttled)
	if err != nil {
		t.Fatal(err)
	}
	cfg.BaseEndpoint = &url
	cfg.Credentials = credentials.NewStaticCredentialsProvider("a", "s", "")
	p, err := New(Config{Zone: "zone-a", EC2: ec2.NewFromConfig(cfg)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCreateIsRepeatedWithTheSameBytes(t *testing.T) {
	t.Parallel()
	s := script(t, hangUp, failure(500, "InternalError", "oops"), made)
	p := against(t, s.url, nil)
	vm, err := p.Create(t.Context(), request())
	if err != nil || vm.ProviderID != "i-1" || vm.State != infra.Pending || vm.Tags != request().Tags {
		t.Fatalf("Create answered %+v, %v", vm, err)
	}
	if n := s.calls.Load(); n != 3 {
		t.Fatalf("%d attempts, want 3", n)
	}
	if s.forms[0] != s.forms[1] || s.forms[0] != s.forms[2] || !strings.Contains(s.forms[0], "ClientToken="+
		request().Tags.Instance.String()) {
		t.Errorf("attempts differ, or have no client token:\n%s", strings.Join(s.forms, "\n"))
	}
}

func TestClassesOfAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []http.HandlerFunc
		want    infra.Class
		calls   int64
		text    string
	}{
		"refused": {[]http.HandlerFunc{failure(400, "InvalidParameterValue", "no")}, infra.Invalid,
			1, "create knd"},
		"no capacity": {[]http.HandlerFunc{failure(500, "InsufficientInstanceCapacity", "none")},
			infra.Capacity, 1, "InsufficientInstanceCapacity: none (request req-1)"},
		"missing image": {[]http.HandlerFunc{failure(400, "InvalidAMIID.NotFound", "no image")},
			infra.Invalid, 1, "no image"},
		"throttled throughout": {[]http.HandlerFunc{failure(503, "RequestLimitExceeded", "slow")},
			infra.Throttled, 1, "slow"},
		"no answer": {[]http.HandlerFunc{hangUp}, infra.Indeterminate, maxAttempts, "RunInstances"},
		"server error": {[]http.HandlerFunc{failure(500, "InternalError", "oops")}, infra.Indeterminate,
			maxAttempts, "oops"},
		"refused after no answer": {[]http.HandlerFunc{hangUp, failure(400, "InsufficientInstanceCapacity", "none")},
			infra.Indeterminate, 2, "none"},
		"refused after server error": {[]http.HandlerFunc{failure(503, "Unavailable", "wait"),
			failure(400, "InvalidParameterValue", "none")}, infra.Indeterminate, 2, "none"},
		"mismatch after no answer": {[]http.HandlerFunc{hangUp, failure(400, "IdempotentParameterMismatch", "other")},
			infra.Conflict, 2, "other"},
		"refused after throttling": {[]http.HandlerFunc{failure(503, "RequestLimitExceeded", "slow"),
			failure(400, "InsufficientInstanceCapacity", "none")}, infra.Throttled, 1, "slow"},
		"empty page":      {[]http.HandlerFunc{page(503, "")}, infra.Indeterminate, maxAttempts, "create"},
		"page of a proxy": {[]http.HandlerFunc{page(403, "<html/>")}, infra.Indeterminate, 1, "StatusCode: 403"},
		"text of a proxy": {[]http.HandlerFunc{page(403, "&")}, infra.Indeterminate, 1, "StatusCode: 403"},
		"refused after a page": {[]http.HandlerFunc{page(504, "<html/>"),
			failure(400, "InsufficientInstanceCapacity", "none")}, infra.Indeterminate, 2, "none"},
		"not XML": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "hello")
		}}, infra.Indeterminate, 0, "create"},
		"nothing made": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "<RunInstancesResponse/>")
		}}, infra.Indeterminate, 1, "0 instances"},
		"encoded authorization": {[]http.HandlerFunc{failure(403, "UnauthorizedOperation",
			"You may not. Encoded authorization failure message: "+strings.Repeat("x", 3000))}, infra.Denied, 1,
			"UnauthorizedOperation: You may not (RunInstances needs ec2:RunInstances, ec2:CreateTags, iam:PassRole, " +
				"iam:CreateServiceLinkedRole) (request req-1)"},
		"terminated under this token": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w,
				`<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>terminated</name></instanceState></item></instancesSet></RunInstancesResponse>`)
		}}, infra.Conflict, 1, "i-1 of this request was terminated"},
		"ending under this token": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w,
				`<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>shutting-down</name></instanceState></item></instancesSet></RunInstancesResponse>`)
		}}, infra.Conflict, 1, "i-1 of this request was terminated"},
		"other tags under this token": {[]http.HandlerFunc{func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w,
				`<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name></instanceState>
				<tagSet><item><key>nstance:instance-id</key><value>x</value></item></tagSet></item></instancesSet></RunInstancesResponse>`)
		}}, infra.Conflict, 1, "i-1 was made before with other tags"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t, tc.answers...)
			_, err := against(t, s.url, nil).Create(t.Context(), request())
			if infra.ClassOf(err) != tc.want || !errors.Is(err, tc.want) ||
				!strings.Contains(fmt.Sprint(err), tc.text) {
				t.Errorf("error %v of class %q, want %q with %q", err, infra.ClassOf(err), tc.want, tc.text)
			}
			if n := s.calls.Load(); tc.calls > 0 && n != tc.calls {
				t.Errorf("%d attempts, want %d", n, tc.calls)
			}
			if len(fmt.Sprint(err)) > 600 || strings.Contains(fmt.Sprint(err), "xxxx") ||
				strings.Contains(fmt.Sprint(err), string(request().Userdata)) {
				t.Errorf("the error contains a secret: %v", err)
			}
			if strings.Contains(fmt.Sprint(err), "operation error") {
				t.Errorf("the error names the call twice: %v", err)
			}
		})
	}
}

func TestEndedContextIsIndeterminate(t *testing.T) {
	s := script(t, made)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := against(t, s.url, nil).Create(ctx, request())
	if infra.ClassOf(err) != infra.Indeterminate || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of class %q", err, infra.ClassOf(err))
	}
}

// TestClassOfAnEndedCall checks that a call whose context ended counts as throttled only if it had no effect: each
// attempt that was sent was throttled.
func TestClassOfAnEndedCall(t *testing.T) {
	late := context.DeadlineExceeded
	limit := fmt.Errorf("%w: %w", errHeldBack, late)
	for _, c := range []struct {
		sent, turned int32
		err          error
		want         infra.Class
	}{
		{0, 0, context.Canceled, infra.Indeterminate}, {0, 0, late, infra.Indeterminate},
		{1, 0, late, infra.Indeterminate}, {2, 1, late, infra.Indeterminate}, {2, 1, limit, infra.Indeterminate},
		{1, 1, context.Canceled, infra.Indeterminate},
		{1, 1, late, infra.Throttled}, {1, 1, limit, infra.Throttled}, {0, 0, limit, infra.Throttled},
	} {
		tries := &attempts{}
		tries.sent.Store(c.sent)
		tries.turned.Store(c.turned)
		err := classify("create", "RunInstances", tries, c.err)
		if infra.ClassOf(err) != c.want {
			t.Errorf("%d of %d attempts throttled, %v: class %q, want %q", c.turned, c.sent, c.err, infra.ClassOf(err),
				c.want)
		}
	}
}

// TestCallsAreBounded checks the limits of a call to AWS.
func TestCallsAreBounded(t *testing.T) {
	cfg, err := SDK(t.Context(), config.Provider{Region: "us-west-2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok || client.GetDialer().Timeout != dialTimeout || client.GetTransport().ResponseHeaderTimeout != answerTimeout {
		t.Errorf("the client is %+v", cfg.HTTPClient)
	}
	full := apiError("InsufficientInstanceCapacity")
	for name, r := range map[string]sdk.Retryer{"creates": creating(), "others": cfg.Retryer()} {
		pause, err := r.RetryDelay(100, full)
		if r.MaxAttempts() != maxAttempts || pause > maxBackoff || err != nil || r.IsErrorRetryable(full) {
			t.Errorf("%s: %d attempts, a pause of %v, %v, repeats a refusal: %v", name, r.MaxAttempts(), pause, err,
				r.IsErrorRetryable(full))
		}
	}
}

func TestProfileMustExist(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	_, err := SDK(t.Context(), config.Provider{Region: "us-west-2", Options: map[string]string{
		contract.OptionProfile: "mistyped"}}, nil)
	if err == nil || !strings.Contains(err.Error(), "mistyped") {
		t.Errorf("loaded a profile that does not exist: %v", err)
	}
}

// TestDefaults checks that a provider without optional settings can make every call.
func TestDefaults(t *testing.T) {
	p, err := New(Config{Zone: "zone-a"})
	if err != nil || p.cfg.PageSize == 0 || p.cfg.Log == nil || p.cfg.Now == nil || p.cfg.Sleep == nil ||
		p.cfg.Answers == nil {
		t.Errorf("%+v, %v", p.cfg, err)
	}
}

// TestCallHeldBackByThrottlingIsThrottled checks the class of a call that is held back by throttling until its
// deadline. Such a call has no effect.
func TestCallHeldBackByThrottlingIsThrottled(t *testing.T) {
	t.Parallel()
	s := script(t, failure(503, "RequestLimitExceeded", "slow"))
	p := against(t, s.url, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	seen := map[infra.Class]int{}
	held := 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			err := p.Delete(ctx, infra.VM{ProviderID: "i-1"})
			mu.Lock()
			defer mu.Unlock()
			seen[infra.ClassOf(err)]++
			if strings.Contains(err.Error(), "held back after throttling") {
				held++
			}
		})
	}
	all.Wait()
	if seen[infra.Throttled] < 20 || held == 0 || seen[infra.Throttled] < held {
		t.Errorf("classes %v, %d held back", seen, held)
	}
}

// TestCredentials checks the class of a call whose first attempts, or all, find no credentials. Such attempts have no
// effect.
func TestCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		fails int64
		err   error
		want  infra.Class
		text  string
		calls int64
	}{
		"none": {1 << 30, errors.New("no role found"), infra.Denied, "no role found", 0},
		"late": {1, &net.OpError{Op: "dial", Err: errors.New("no answer")}, infra.Capacity, "none", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(t, failure(400, "InsufficientInstanceCapacity", "none"))
			cfg, err := SDK(t.Context(), config.Provider{Region: "us-west-2"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			cfg.BaseEndpoint = &s.url
			var asked atomic.Int64
			cfg.Credentials = sdk.CredentialsProviderFunc(func(context.Context) (sdk.Credentials, error) {
				if asked.Add(1) <= c.fails {
					return sdk.Credentials{}, c.err
				}
				return sdk.Credentials{AccessKeyID: "a", SecretAccessKey: "s"}, nil
			})
			p := against(t, s.url, nil)
			p.cfg.EC2 = ec2.NewFromConfig(cfg)
			_, err = p.Create(t.Context(), request())
			if infra.ClassOf(err) != c.want || !strings.Contains(fmt.Sprint(err), c.text) || s.calls.Load() != c.calls {
				t.Errorf("error %v of class %q after %d calls", err, infra.ClassOf(err), s.calls.Load())
			}
		})
	}
}
