package main

import (
	"context"
	"log"
	"net"
	_ "unsafe" // for go:linkname

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// The index of pods that the controller adds to its cache.
const byAddress = "podIPKeyIndex"

// The controller asks these two for each packet that the kernel queues. They are not exported.

//go:linkname policiesOf sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).getNetworkPoliciesForPod
func policiesOf(controller *networkpolicy.Controller, pod *v1.Pod) []*networkingv1.NetworkPolicy

//go:linkname evaluate sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluator
func evaluate(
	controller *networkpolicy.Controller, ctx context.Context, policies []*networkingv1.NetworkPolicy,
	direction networkingv1.PolicyType, own *v1.Pod, ownPort int, other *v1.Pod, otherIP net.IP, otherPort int,
	protocol v1.Protocol) bool

// A controller that never runs, and its caches.
type peer struct {
	controller                 *networkpolicy.Controller
	namespaces, pods, policies cache.Indexer
}

func newPeer() *peer {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	policies, core := factory.Networking().V1().NetworkPolicies(), factory.Core().V1()
	controller, err := networkpolicy.NewController(
		client, policies, core.Namespaces(), core.Pods(), core.Nodes(), nil, nil, nil,
		networkpolicy.Config{NodeName: "node-1", NRIdisabled: true})
	if err != nil {
		log.Fatal(err)
	}
	return &peer{
		controller: controller,
		namespaces: core.Namespaces().Informer().GetIndexer(),
		pods:       core.Pods().Informer().GetIndexer(),
		policies:   policies.Informer().GetIndexer(),
	}
}

// learn replaces what the caches hold.
func (p *peer) learn(cluster *cluster) {
	replace(p.namespaces, cluster.Namespaces)
	replace(p.pods, cluster.Pods)
	replace(p.policies, cluster.Policies)
}

func replace[T any](cache cache.Indexer, objects []T) {
	all := make([]any, len(objects))
	for i, object := range objects {
		all[i] = object
	}
	if err := cache.Replace(all, ""); err != nil {
		log.Fatal(err)
	}
}

// judge asks the questions that evaluatePacket asks, for each end by itself.
func (p *peer) judge(q question) (verdict answer) {
	from, to := p.podAt(q.From), p.podAt(q.To)
	ask := func(direction networkingv1.PolicyType, own *v1.Pod, other *v1.Pod, otherIP net.IP, ownPort, otherPort int) *bool {
		if own == nil {
			return nil
		}
		policies := policiesOf(p.controller, own)
		allowed := evaluate(p.controller, context.Background(), policies, direction,
			own, ownPort, other, otherIP, otherPort, q.Protocol)
		return &allowed
	}
	const clientPort = 0
	verdict[0] = ask(networkingv1.PolicyTypeEgress, from, to, q.To, clientPort, q.Port)
	verdict[1] = ask(networkingv1.PolicyTypeIngress, to, from, q.From, q.Port, clientPort)
	return verdict
}

// podAt returns the pod with an address, as the controller finds it. Pods of the host's network have none.
func (p *peer) podAt(address net.IP) *v1.Pod {
	objects, err := p.pods.ByIndex(byAddress, address.String())
	if err != nil {
		log.Fatal(err)
	}
	for _, object := range objects {
		if pod := object.(*v1.Pod); pod.Status.Phase == v1.PodRunning {
			return pod
		}
	}
	return nil
}
