// Ferretdb speaks MongoDB's protocol over a PostgreSQL server, whose users log in with authMechanism=PLAIN.
package main

import (
	"context"
	"log"
	"os"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	config := &ferretdb.Config{Handler: "postgresql", PostgreSQLURL: os.Args[2]}
	config.Listener.TCP = os.Args[1]
	server, err := ferretdb.New(config)
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
