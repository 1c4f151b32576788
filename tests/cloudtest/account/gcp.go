package account

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/api/cloudresourcemanager/v1"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iam/v1"
	"google.golang.org/api/secretmanager/v1"
	"google.golang.org/api/storage/v1"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// GCP is a region of a project of Google Cloud.
type GCP struct {
	project, region string
	compute         *compute.Service
	iam             *iam.Service
	projects        *cloudresourcemanager.Service
	storage         *storage.Service
	secrets         *secretmanager.Service
}

// NewGCP returns the region of a project. A request that Google Cloud throttles is repeated for about two minutes.
func NewGCP(ctx context.Context, access googlecloud.Access, project, region string) (*GCP, error) {
	g := &GCP{project: project, region: region}
	client := *access.Client
	client.Transport = patient{client.Transport}
	access.Client = &client
	var errs [5]error
	g.compute, errs[0] = compute.NewService(ctx, access.Options("compute")...)
	g.iam, errs[1] = iam.NewService(ctx, access.Options("iam")...)
	g.projects, errs[2] = cloudresourcemanager.NewService(ctx, access.Options("resource_manager")...)
	g.storage, errs[3] = storage.NewService(ctx, access.Options("storage")...)
	g.secrets, errs[4] = secretmanager.NewService(ctx, access.Options("secret_manager")...)
	return g, errors.Join(errs[:]...)
}

// Identify implements [Account].
func (g *GCP) Identify(ctx context.Context) (Identity, error) {
	project, err := g.projects.Projects.Get(g.project).Context(ctx).Do()
	if err != nil {
		return Identity{}, gcpError(err)
	}
	return Identity{Account: project.ProjectId, Caller: fmt.Sprintf("%s, number %d", project.Name,
		project.ProjectNumber)}, nil
}

// Zone implements [Account].
func (g *GCP) Zone(ctx context.Context, region, want string, machines []string) (string, error) {
	var zones, all []string
	offers := map[string][]string{}
	if err := g.compute.Zones.List(g.project).Pages(ctx, func(page *compute.ZoneList) error {
		for _, zone := range page.Items {
			in := path.Base(zone.Region)
			if !slices.Contains(all, in) {
				all = append(all, in)
			}
			if in == region && zone.Status == "UP" {
				zones = append(zones, zone.Name)
			}
		}
		return nil
	}); err != nil {
		return "", fmt.Errorf("list the zones of the project %s (is compute.googleapis.com enabled?): %w", g.project,
			gcpError(err))
	}
	if len(zones) == 0 {
		slices.Sort(all)
		return "", fmt.Errorf("there is no region %s: the project has %s", region, strings.Join(all, ", "))
	}
	for _, zone := range zones {
		for _, machine := range machines {
			_, err := g.compute.MachineTypes.Get(g.project, zone, machine).Context(ctx).Do()
			switch {
			case err == nil:
				offers[zone] = append(offers[zone], machine)
			case googlecloud.StatusOf(err) != http.StatusNotFound:
				return "", fmt.Errorf("look for the machine type %s in the zone %s: %w", machine, zone, gcpError(err))
			}
		}
	}
	return choose(region, want, zones, offers, machines)
}

// Image implements [Account].
func (g *GCP) Image(ctx context.Context, cluster, role string) (string, error) {
	var newest *compute.Image
	if err := g.compute.Images.List(g.project).Pages(ctx, func(page *compute.ImageList) error {
		for _, image := range page.Items {
			if image.Labels[Tag] == cluster && image.Labels["nstance-image"] == role &&
				(newest == nil || image.CreationTimestamp > newest.CreationTimestamp) {
				newest = image
			}
		}
		return nil
	}); err != nil {
		return "", fmt.Errorf("list images: %w", gcpError(err))
	}
	if newest == nil {
		return "", fmt.Errorf("there is no image of the role %s with the label %s=%s", role, Tag, cluster)
	}
	return "projects/" + g.project + "/global/images/" + newest.Name, nil
}

// Workers implements [Account].
func (g *GCP) Workers(ctx context.Context, cluster string) ([]string, error) {
	return g.machines(ctx, cluster, "nstance-instance-id")
}

// Servers implements [Account].
func (g *GCP) Servers(ctx context.Context, cluster string) ([]string, error) {
	return g.machines(ctx, cluster, "nstance-server")
}

// machines returns the pending and running instances of a cluster that have a label.
func (g *GCP) machines(ctx context.Context, cluster, label string) (ids []string, err error) {
	err = g.eachInstance(ctx, func(_ string, in *compute.Instance) {
		if in.Labels["nstance-cluster"] == cluster && in.Labels[label] != "" &&
			slices.Contains([]string{"PROVISIONING", "STAGING", "RUNNING"}, in.Status) {
			ids = append(ids, strconv.FormatUint(in.Id, 10))
		}
	})
	slices.Sort(ids)
	return ids, err
}

// Kill implements [Account].
func (g *GCP) Kill(ctx context.Context, id string) error {
	var killed error
	if err := g.eachInstance(ctx, func(zone string, in *compute.Instance) {
		if strconv.FormatUint(in.Id, 10) == id {
			_, killed = g.compute.Instances.Delete(g.project, zone, in.Name).Context(ctx).Do()
		}
	}); err != nil {
		return err
	}
	return gcpError(killed)
}

// zones returns the zones of the region.
func (g *GCP) zones(ctx context.Context) (names []string, err error) {
	err = g.compute.Zones.List(g.project).Pages(ctx, func(page *compute.ZoneList) error {
		for _, zone := range page.Items {
			if path.Base(zone.Region) == g.region {
				names = append(names, zone.Name)
			}
		}
		return nil
	})
	return names, gcpError(err)
}

// eachInstance visits the instances of the region.
func (g *GCP) eachInstance(ctx context.Context, visit func(zone string, in *compute.Instance)) error {
	zones, err := g.zones(ctx)
	if err != nil {
		return err
	}
	for _, zone := range zones {
		if err := g.compute.Instances.List(g.project, zone).Pages(ctx, func(page *compute.InstanceList) error {
			for _, in := range page.Items {
				visit(zone, in)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("list instances: %w", gcpError(err))
		}
	}
	return nil
}

// gcpError marks the errors of Google Cloud that a repetition does not change.
func gcpError(err error) error {
	if answer, ok := errors.AsType[*googleapi.Error](err); ok && !rateLimited(answer) &&
		(answer.Code == http.StatusForbidden || answer.Code == http.StatusUnauthorized) {
		return &RefusedError{err}
	}
	return err
}

// gcpKind lists the resources of one kind.
type gcpKind struct {
	name string
	list func(ctx context.Context, add func(name string, labels map[string]string, remove doer)) error
}

// doer deletes a resource, without waiting for the operation.
type doer func(ctx context.Context) error

// does makes a doer of an SDK call.
func does[T any](call interface {
	Do(opts ...googleapi.CallOption) (T, error)
}) doer {
	return func(context.Context) error {
		_, err := call.Do()
		return err
	}
}

// Kinds implements [Account].
func (g *GCP) Kinds() (names []string) {
	for _, kind := range g.kinds("", nil) {
		names = append(names, kind.name)
	}
	return names
}

// Inventory implements [Account]. Most kinds have no labels, so it looks at the names, which begin with the cluster's.
func (g *GCP) Inventory(ctx context.Context, cluster string) (found []Resource, err error) {
	zones, err := g.zones(ctx)
	if err != nil {
		return nil, fmt.Errorf("list zones: %w", err)
	}
	for _, kind := range g.kinds(cluster, zones) {
		if err := kind.list(ctx, func(name string, labels map[string]string, remove doer) {
			if belongs(cluster, name, labels) {
				found = append(found, Resource{Kind: kind.name, ID: name, remove: func(ctx context.Context) error {
					return gcpError(remove(ctx))
				}})
			}
		}); err != nil {
			return nil, fmt.Errorf("list resources of the kind %s: %w", kind.name, gcpError(err))
		}
	}
	return found, nil
}

// kinds returns the kinds that the example and Packer make, in the order in which they are deleted.
func (g *GCP) kinds(cluster string, zones []string) []gcpKind {
	type add = func(name string, labels map[string]string, remove doer)
	c, p, r := g.compute, g.project, g.region
	zonal := func(list func(ctx context.Context, zone string, add add) error) func(context.Context, add) error {
		return func(ctx context.Context, add add) error {
			for _, zone := range zones {
				if err := list(ctx, zone, add); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return []gcpKind{
		{"forwarding rule", func(ctx context.Context, add add) error {
			return c.ForwardingRules.List(p, r).Pages(ctx, func(page *compute.ForwardingRuleList) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, does(c.ForwardingRules.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"backend service", func(ctx context.Context, add add) error {
			return c.RegionBackendServices.List(p, r).Pages(ctx, func(page *compute.BackendServiceList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.RegionBackendServices.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"instance group manager", zonal(func(ctx context.Context, zone string, add add) error {
			return c.InstanceGroupManagers.List(p, zone).Pages(ctx, func(page *compute.InstanceGroupManagerList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.InstanceGroupManagers.Delete(p, zone, v.Name)))
				}
				return nil
			})
		})},
		{"instance", zonal(func(ctx context.Context, zone string, add add) error {
			return c.Instances.List(p, zone).Pages(ctx, func(page *compute.InstanceList) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, does(c.Instances.Delete(p, zone, v.Name)))
				}
				return nil
			})
		})},
		{"instance group", zonal(func(ctx context.Context, zone string, add add) error {
			return c.InstanceGroups.List(p, zone).Pages(ctx, func(page *compute.InstanceGroupList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.InstanceGroups.Delete(p, zone, v.Name)))
				}
				return nil
			})
		})},
		{"instance template", func(ctx context.Context, add add) error {
			return c.RegionInstanceTemplates.List(p, r).Pages(ctx, func(page *compute.InstanceTemplateList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.RegionInstanceTemplates.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"health check", func(ctx context.Context, add add) error {
			return c.HealthChecks.List(p).Pages(ctx, func(page *compute.HealthCheckList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.HealthChecks.Delete(p, v.Name)))
				}
				return nil
			})
		}},
		{"regional health check", func(ctx context.Context, add add) error {
			return c.RegionHealthChecks.List(p, r).Pages(ctx, func(page *compute.HealthCheckList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.RegionHealthChecks.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"address", func(ctx context.Context, add add) error {
			return c.Addresses.List(p, r).Pages(ctx, func(page *compute.AddressList) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, does(c.Addresses.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"disk", zonal(func(ctx context.Context, zone string, add add) error {
			return c.Disks.List(p, zone).Pages(ctx, func(page *compute.DiskList) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, does(c.Disks.Delete(p, zone, v.Name)))
				}
				return nil
			})
		})},
		{"image", func(ctx context.Context, add add) error {
			return c.Images.List(p).Pages(ctx, func(page *compute.ImageList) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, does(c.Images.Delete(p, v.Name)))
				}
				return nil
			})
		}},
		{"router", func(ctx context.Context, add add) error {
			return c.Routers.List(p, r).Pages(ctx, func(page *compute.RouterList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.Routers.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"firewall rule", func(ctx context.Context, add add) error {
			return c.Firewalls.List(p).Pages(ctx, func(page *compute.FirewallList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.Firewalls.Delete(p, v.Name)))
				}
				return nil
			})
		}},
		{"subnet", func(ctx context.Context, add add) error {
			return c.Subnetworks.List(p, r).Pages(ctx, func(page *compute.SubnetworkList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.Subnetworks.Delete(p, r, v.Name)))
				}
				return nil
			})
		}},
		{"network", func(ctx context.Context, add add) error {
			return c.Networks.List(p).Pages(ctx, func(page *compute.NetworkList) error {
				for _, v := range page.Items {
					add(v.Name, nil, does(c.Networks.Delete(p, v.Name)))
				}
				return nil
			})
		}},
		{"bucket", func(ctx context.Context, add add) error {
			return g.storage.Buckets.List(p).Pages(ctx, func(page *storage.Buckets) error {
				for _, v := range page.Items {
					add(v.Name, v.Labels, func(ctx context.Context) error { return g.deleteBucket(ctx, v.Name) })
				}
				return nil
			})
		}},
		{"secret", func(ctx context.Context, add add) error {
			return g.secrets.Projects.Secrets.List("projects/"+p).Pages(ctx,
				func(page *secretmanager.ListSecretsResponse) error {
					for _, v := range page.Secrets {
						add(strings.TrimPrefix(path.Base(v.Name), "nstance-"), v.Labels,
							does(g.secrets.Projects.Secrets.Delete(v.Name)))
					}
					return nil
				})
		}},
		{"workload identity pool", func(ctx context.Context, add add) error {
			pools := g.iam.Projects.Locations.WorkloadIdentityPools
			return pools.List("projects/"+p+"/locations/global").Pages(ctx,
				func(page *iam.ListWorkloadIdentityPoolsResponse) error {
					for _, v := range page.WorkloadIdentityPools { // a deleted one keeps its ID for 30 days
						if v.State != "DELETED" {
							add(strings.TrimPrefix(path.Base(v.Name), "nstance-"), nil, does(pools.Delete(v.Name)))
						}
					}
					return nil
				})
		}},
		{"binding of the project", func(ctx context.Context, add add) error { return g.bindings(ctx, cluster, add) }},
		{"custom role", func(ctx context.Context, add add) error {
			return g.iam.Projects.Roles.List("projects/"+p).Pages(ctx, func(page *iam.ListRolesResponse) error {
				for _, v := range page.Roles {
					if !v.Deleted {
						add(strings.ReplaceAll(path.Base(v.Name), "_", "-"), nil,
							does(g.iam.Projects.Roles.Delete(v.Name)))
					}
				}
				return nil
			})
		}},
		{"service account", func(ctx context.Context, add add) error {
			return g.iam.Projects.ServiceAccounts.List("projects/"+p).Pages(ctx,
				func(page *iam.ListServiceAccountsResponse) error {
					for _, v := range page.Accounts {
						add(v.Email, nil, does(g.iam.Projects.ServiceAccounts.Delete(v.Name)))
					}
					return nil
				})
		}},
	}
}

// deleteBucket deletes a bucket with all versions of its objects.
func (g *GCP) deleteBucket(ctx context.Context, bucket string) error {
	if err := g.storage.Objects.List(bucket).Versions(true).Pages(ctx, func(page *storage.Objects) error {
		for _, object := range page.Items {
			err := g.storage.Objects.Delete(bucket, object.Name).Generation(object.Generation).Context(ctx).Do()
			if err != nil && googlecloud.StatusOf(err) != http.StatusNotFound {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return g.storage.Buckets.Delete(bucket).Context(ctx).Do()
}

// bindings lists the bindings of the project's policy with a service account of the cluster.
func (g *GCP) bindings(ctx context.Context, cluster string,
	add func(name string, labels map[string]string, remove doer)) error {
	policy, err := g.policy(ctx)
	if err != nil {
		return err
	}
	for _, binding := range policy.Bindings {
		for _, member := range binding.Members {
			if account, ok := accountOf(member); ok && belongs(cluster, account, nil) {
				add(account, nil, func(ctx context.Context) error { return g.unbind(ctx, cluster) })
				break
			}
		}
	}
	return nil
}

// accountOf returns the service account of a member of a binding. It may be deleted.
func accountOf(member string) (string, bool) {
	return strings.CutPrefix(strings.TrimPrefix(member, "deleted:"), "serviceAccount:")
}

func (g *GCP) policy(ctx context.Context) (*cloudresourcemanager.Policy, error) {
	return g.projects.Projects.GetIamPolicy(g.project, &cloudresourcemanager.GetIamPolicyRequest{
		Options: &cloudresourcemanager.GetPolicyOptions{RequestedPolicyVersion: 3}}).Context(ctx).Do()
}

// unbind removes the cluster's service accounts from the project's policy. The policy's etag makes the change fail if
// somebody else changes the policy at the same time.
func (g *GCP) unbind(ctx context.Context, cluster string) error {
	policy, err := g.policy(ctx)
	if err != nil {
		return err
	}
	changed := false
	for _, binding := range policy.Bindings {
		before := len(binding.Members)
		binding.Members = slices.DeleteFunc(binding.Members, func(member string) bool {
			account, ok := accountOf(member)
			return ok && belongs(cluster, account, nil)
		})
		changed = changed || len(binding.Members) < before
	}
	if !changed { // by the deletion of another binding
		return nil
	}
	policy.Bindings = slices.DeleteFunc(policy.Bindings, func(b *cloudresourcemanager.Binding) bool {
		return len(b.Members) == 0
	})
	policy.Version = 3
	_, err = g.projects.Projects.SetIamPolicy(g.project,
		&cloudresourcemanager.SetIamPolicyRequest{Policy: policy}).Context(ctx).Do()
	return err
}
