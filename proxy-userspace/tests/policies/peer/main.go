// Answers questions about NetworkPolicies by kube-network-policies, SIG Network's implementation.
//
// Each line of the input is a cluster with questions, and each line of the output has the answers: for every question
// whether egress and ingress are allowed, or null at an end that is no pod.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"net"
	"os"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A line of the input.
type cluster struct {
	Namespaces []*v1.Namespace
	Pods       []*v1.Pod
	Policies   []*networkingv1.NetworkPolicy
	Questions  []question
}

// The first packet of a connection.
type question struct {
	From, To net.IP
	Protocol v1.Protocol
	Port     int
}

// Egress and ingress.
type answer [2]*bool

func main() {
	peer := newPeer()
	input := json.NewDecoder(bufio.NewReader(os.Stdin))
	output := json.NewEncoder(os.Stdout)
	for {
		var asked cluster
		if err := input.Decode(&asked); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		asked.setDefaults()
		peer.learn(&asked)
		answers := make([]answer, len(asked.Questions))
		for i, question := range asked.Questions {
			answers[i] = peer.judge(question)
		}
		if err := output.Encode(answers); err != nil {
			log.Fatal(err)
		}
	}
}

// setDefaults does what the kubelet and the API server do before objects are stored.
func (c *cluster) setDefaults() {
	for _, pod := range c.Pods {
		for i, address := range pod.Status.PodIPs {
			pod.Status.PodIPs[i].IP = net.ParseIP(address.IP).String()
		}
		for _, containers := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for _, container := range containers {
				for i := range container.Ports {
					if container.Ports[i].Protocol == "" {
						container.Ports[i].Protocol = v1.ProtocolTCP
					}
				}
			}
		}
	}
	for _, policy := range c.Policies {
		spec := &policy.Spec
		if len(spec.PolicyTypes) == 0 {
			spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(spec.Egress) > 0 {
				spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
			}
		}
		for _, rule := range spec.Ingress {
			setProtocols(rule.Ports)
		}
		for _, rule := range spec.Egress {
			setProtocols(rule.Ports)
		}
		// The API server stores no empty lists.
		if len(spec.Ingress) == 0 {
			spec.Ingress = nil
		}
		if len(spec.Egress) == 0 {
			spec.Egress = nil
		}
	}
}

func setProtocols(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		if ports[i].Protocol == nil {
			tcp := v1.ProtocolTCP
			ports[i].Protocol = &tcp
		}
	}
}
