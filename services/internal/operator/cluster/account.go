package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// workloadRole is the ClusterRole of Cluster API's core in the workload cluster.
const workloadRole = "nstance-operator-workload"

// workloadRules are the rules of services/operator/kustomize/rbac/workload-role.yaml, where they are explained.
func workloadRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"},
			Verbs: []string{"get", "list", "watch", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "namespaces", "persistentvolumes",
			"persistentvolumeclaims"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: read},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}, Verbs: read},
		{NonResourceURLs: []string{"/"}, Verbs: []string{"get"}},
	}
}

// createAccount creates the ServiceAccount whose tokens are in Cluster API's kubeconfig. It also creates the
// permissions of this account. An operator on a developer's machine may create these objects. An operator in a cluster
// may not: there, the chart or the kustomize bases create them. If they are missing, the error contains the commands
// that create them.
func (k *kubeconfigKeeper) createAccount(ctx context.Context) error {
	binding := k.ServiceAccount + "-" + k.Namespace
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: workloadRole}, Rules: workloadRules()},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: binding},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: workloadRole},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: k.Namespace,
				Name: k.ServiceAccount}}},
		// Create the account last: if the account exists, the role and its binding exist too.
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.ServiceAccount},
			AutomountServiceAccountToken: ptr.To(false)},
	} {
		err := k.Client.Create(ctx, object)
		switch {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("ServiceAccount %[1]s/%[2]s does not exist, and the operator may not create it: apply "+
				"services/operator/kustomize/rbac, or run: kubectl create serviceaccount %[2]s -n %[1]s; kubectl "+
				"create clusterrolebinding %[3]s --clusterrole=%[4]s --serviceaccount=%[1]s:%[2]s (%[5]w)", k.Namespace,
				k.ServiceAccount, binding, workloadRole, err)
		case err != nil && !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		case err == nil:
			k.Log.Info("created what Cluster API's account needs", "kind", fmt.Sprintf("%T", object), "name",
				object.GetName())
		}
	}
	return nil
}
