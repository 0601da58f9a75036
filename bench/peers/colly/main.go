// Colly as a crawler of the seeds' hosts: asynchronous, robots.txt obeyed, connections kept, everything in memory. The
// visited set is our own: Colly's checks and marks in two steps, so that parallel pages visit a link twice.
//
//	colly SEEDS OUT
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/PuerkitoBio/goquery"
	"github.com/gocolly/colly/v2"
)

const concurrency = 256

type row struct {
	URL    string `json:"url"`
	Status int    `json:"status"`
	Title  string `json:"title"`
	Links  int    `json:"links"`
}

func withoutTracking(href string) string {
	if at := strings.Index(href, "utm_"); at > 0 {
		return href[:at-1]
	}
	return href
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	seeds := strings.Fields(string(text))
	var hosts []string
	for _, seed := range seeds {
		parsed, err := url.Parse(seed)
		if err != nil {
			log.Fatal(err)
		}
		hosts = append(hosts, parsed.Hostname())
	}
	file, err := os.Create(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	var mutex sync.Mutex
	var seen sync.Map

	c := colly.NewCollector(colly.AllowedDomains(hosts...), colly.Async(true), colly.AllowURLRevisit())
	c.IgnoreRobotsTxt = false
	c.DisableCookies()
	c.WithTransport(&http.Transport{MaxIdleConns: concurrency, MaxIdleConnsPerHost: concurrency})
	if err := c.Limit(&colly.LimitRule{DomainGlob: "*", Parallelism: concurrency}); err != nil {
		log.Fatal(err)
	}
	c.OnHTML("html", func(e *colly.HTMLElement) {
		links := map[string]bool{}
		e.DOM.Find("a[href]").Each(func(_ int, a *goquery.Selection) {
			href, _ := a.Attr("href")
			href, _, _ = strings.Cut(href, "#")
			if link, err := e.Request.URL.Parse(withoutTracking(href)); err == nil && link.Scheme == "http" {
				links[link.String()] = true // Request.AbsoluteURL gives the same for more CPU
			}
		})
		for link := range links {
			if _, known := seen.LoadOrStore(link, true); !known {
				_ = e.Request.Visit(link) // foreign and forbidden links are errors by design
			}
		}
		mutex.Lock()
		defer mutex.Unlock()
		_ = encoder.Encode(row{e.Request.URL.String(), e.Response.StatusCode, e.DOM.Find("title").Text(), len(links)})
	})
	c.OnError(func(r *colly.Response, err error) { log.Print(r.Request.URL, " ", err) })
	for _, seed := range seeds {
		seen.Store(seed, true)
	}
	for _, seed := range seeds {
		_ = c.Visit(seed)
	}
	c.Wait()
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}
