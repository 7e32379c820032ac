// Asks `address:port` over TCP and UDP, as any client would; prints both backends and the datagram's peer.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

type sighting struct {
	Backend string `json:"backend"`
}

func main() {
	target := os.Args[1]
	client := http.Client{Timeout: 20 * time.Second}
	page, err := client.Get("http://" + target + "/")
	check(err)
	defer page.Body.Close()
	var byStream, byDatagram sighting
	check(json.NewDecoder(page.Body).Decode(&byStream))

	socket, err := net.Dial("udp", target)
	check(err)
	defer socket.Close()
	check(socket.SetDeadline(time.Now().Add(20 * time.Second)))
	_, err = socket.Write([]byte("who is there?"))
	check(err)
	answer := make([]byte, 65536)
	length, err := socket.Read(answer)
	check(err)
	line, echo, _ := bytes.Cut(answer[:length], []byte("\n"))
	check(json.Unmarshal(line, &byDatagram))
	if string(echo) != "who is there?" {
		log.Fatalf("the echo is %q", echo)
	}
	fmt.Println(byStream.Backend, byDatagram.Backend, socket.RemoteAddr())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
