package system

import (
	"context"
	"crypto/ed25519"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
)

const (
	zone   = "us-west-2a"
	region = "us-west-2"
	kind   = "t3.small"
	// address is the address of the leader's network interface. In this test, no machine configures this address, so
	// nobody can reach it. The servers only see that the interface is attached.
	address = "10.0.127.250"
)

// cloud is a fake EC2 in this process. The VMs of the shard and the machines of the servers are its instances.
type cloud struct {
	*fakeaws.Cloud
	url    string
	access string
	secret string
	client *ec2.Client

	image, subnet, eni string
	vms                []string // registered VMs of the shard that still run

	mu       sync.Mutex
	machines map[string]string // instance ID by server
	metadata map[string]string // URL of the metadata service by server
	services []*http.Server
}

func newCloud(ctx context.Context) (*cloud, error) {
	all, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		return nil, err
	}
	c := &cloud{Cloud: all, machines: map[string]string{}, metadata: map[string]string{}}
	if c.url, err = c.serve(ctx, c.Cloud); err != nil {
		return nil, err
	}
	c.access, c.secret = c.Credentials()
	c.client = ec2.New(ec2.Options{Region: region, BaseEndpoint: &c.url,
		Credentials: credentials.NewStaticCredentialsProvider(c.access, c.secret, "")})
	c.image = c.EC2().AddImage(fake.AMI{Name: "base"})
	vpc, err := c.client.CreateVpc(ctx, &ec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	if err != nil {
		return nil, err
	}
	subnet, err := c.client.CreateSubnet(ctx, &ec2.CreateSubnetInput{VpcId: vpc.Vpc.VpcId,
		CidrBlock: aws.String("10.0.0.0/17"), AvailabilityZone: aws.String(zone)})
	if err != nil {
		return nil, err
	}
	c.subnet = *subnet.Subnet.SubnetId
	eni, err := c.client.CreateNetworkInterface(ctx, &ec2.CreateNetworkInterfaceInput{SubnetId: &c.subnet,
		PrivateIpAddress: aws.String(address)})
	if err != nil {
		return nil, err
	}
	c.eni = *eni.NetworkInterface.NetworkInterfaceId
	for n := 1; n <= servers; n++ {
		name := local.ServerName(n)
		if err := c.newMachine(ctx, name); err != nil {
			return nil, err
		}
		if c.metadata[name], err = c.serve(ctx, c.metadataOf(name)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cloud) serve(ctx context.Context, handler http.Handler) (url string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	c.services = append(c.services, server)
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}

func (c *cloud) close() error {
	var errs []error
	for _, server := range c.services {
		errs = append(errs, server.Close())
	}
	return errors.Join(append(errs, c.Close())...)
}

// newMachine makes the instance on which a server runs.
func (c *cloud) newMachine(ctx context.Context, name string) error {
	out, err := c.client.RunInstances(ctx, &ec2.RunInstancesInput{ImageId: &c.image,
		InstanceType: types.InstanceType(kind), SubnetId: &c.subnet,
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1)})
	if err != nil {
		return fmt.Errorf("make the machine of %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines[name] = *out.Instances[0].InstanceId
	return nil
}

func (c *cloud) machine(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines[name]
}

func (c *cloud) metadataOf(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
			_, _ = io.WriteString(w, "token")
		case strings.HasSuffix(r.URL.Path, "/instance-id"):
			_, _ = io.WriteString(w, c.machine(name))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
}

// environment returns the variables that direct a program's EC2 calls to this cloud. The object store accepts the same
// access key as this cloud, because a program has only one access key.
func (c *cloud) environment(name string) []string {
	return []string{"AWS_ENDPOINT_URL_EC2=" + c.url, "AWS_ACCESS_KEY_ID=" + c.access, "AWS_SECRET_ACCESS_KEY=" +
		c.secret, "AWS_EC2_METADATA_DISABLED=false",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT=" + c.metadata[name], "AWS_CONFIG_FILE=" + os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull}
}

// configure sets EC2 as the provider of the shard. It makes groups of at most 500 instances each, with "records"
// instances in total. The instances run no agents.
func (c *cloud) configure(s *config.Shard, records int) {
	s.Server.Provider = config.Provider{Kind: "aws", Region: region, Zone: zone}
	s.Server.LeaderNetwork = &config.LeaderNetwork{IPv4: address}
	s.Server.LeaderNetwork.InterfaceID = c.eni
	s.Server.SubnetPools = map[string][]string{"local": {c.subnet}}
	s.Server.GarbageCollection.RegistrationTimeout = duration(24 * time.Hour)
	s.Defaults.Args = map[string]any{"ImageId": c.image}
	for name, template := range s.Templates {
		template.InstanceType = kind
		s.Templates[name] = template
	}
	template := slices.Sorted(maps.Keys(s.Templates))[0]
	groups := map[string]config.GroupSpec{}
	for left := records; left > 0; left -= 500 {
		groups[fmt.Sprintf("g%d", len(groups))] = config.GroupSpec{Template: template, Size: aws.Int(min(left, 500))}
	}
	s.Groups = map[string]map[string]config.GroupSpec{local.Tenant: groups}
}

// loss is the loss of a VM. It has the times at which the new leader created the replacement and got the leader's
// network interface.
type loss struct {
	c                 *cloud
	calls             int
	created, attached time.Time
}

// loseVM kills one VM of the shard. If "machine" is true, it also kills the machine on which the leader runs, and makes
// a new one.
func (c *cloud) loseVM(ctx context.Context, leader int, machine bool) (*loss, error) {
	if len(c.vms) == 0 {
		return nil, errors.New("no VM is left")
	}
	at := rand.N(len(c.vms))
	c.EC2().Kill(c.vms[at])
	c.vms = slices.Delete(c.vms, at, at+1)
	if machine {
		name := local.ServerName(leader)
		c.EC2().Kill(c.machine(name))
		if err := c.newMachine(ctx, name); err != nil {
			return nil, err
		}
	}
	return &loss{c: c, calls: len(c.Calls())}, nil
}

// await waits until the successor has created the replacement and has the leader's network interface.
func (l *loss) await(ctx context.Context, successor string) error {
	machine := l.c.machine(successor)
	for l.created.IsZero() || l.attached.IsZero() {
		if l.created.IsZero() {
			calls := l.c.Calls()
			for _, call := range calls[l.calls:] {
				if call.Action == "RunInstances" && call.Code == "" && l.created.IsZero() {
					l.created = call.Time
				}
			}
			l.calls = len(calls)
		}
		if l.attached.IsZero() {
			l.c.Locked(func() {
				if eni, ok := l.c.EC2().Interface(l.c.eni); ok && eni.Attachment != nil &&
					eni.Attachment.Instance == machine {
					l.attached = eni.Attachment.At
				}
			})
		}
		if err := local.Pause(ctx, 200*time.Millisecond); err != nil { // the cloud has the exact times
			return fmt.Errorf("%s did not ask for the replacement (%v) or does not have the interface (%v): %w",
				successor, l.created, l.attached, err)
		}
	}
	return nil
}

// registerAll waits until every instance has its record. It then changes the records as if all instances had
// registered. If an unregistered instance ended, its group would wait before the next create.
func (f *failover) registerAll(ctx context.Context) error {
	want := failoverOptions.records
	began := time.Now()
	for {
		ids, err := liveRecords(ctx, f.stack)
		if err == nil && len(ids) == want {
			break
		}
		if err := local.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d records of %d: %w", len(ids), want, err)
		}
	}
	fmt.Printf("the first leader made %d instances in %v\n", want, time.Since(began).Round(100*time.Millisecond))
	state, err := f.stack.State(ctx)
	if err != nil {
		return err
	}
	public, _, err := ed25519.GenerateKey(crand.Reader)
	if err != nil {
		return err
	}
	for done := 0; done < want; { // the leader may still write some
		if err := local.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d instances of %d registered: %w", done, want, err)
		}
		writes, inner := errgroup.WithContext(ctx)
		writes.SetLimit(16)
		done, f.cloud.vms = 0, nil
		err := state.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
			switch rec.State {
			case record.Registered:
				done++
				f.cloud.vms = append(f.cloud.vms, rec.ProviderID)
			case record.Created:
				writes.Go(func() error {
					next, err := rec.Next(record.Registered, rec.Term, rec.Writer)
					if err != nil {
						return err
					}
					next.RegisteredAt, next.PublicKey, next.NonceID = time.Now(), public, "failover-"+rec.ID.String()
					next.Certificate = &record.CertificateRef{Serial: "0123456789abcdef0123456789abcdef",
						NotAfter: time.Now().Add(24 * time.Hour)}
					_, err = state.PutInstance(inner, next, token)
					return err
				})
			}
		})
		if werr := writes.Wait(); werr != nil {
			return werr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
