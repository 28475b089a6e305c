package api

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
)

// The page is files of ours alone: nothing is fetched from elsewhere.
//
//go:embed page
var pageFiles embed.FS

// page serves the files of the page.
func page() http.Handler {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // they are part of the program
	}
	return http.FileServerFS(files)
}

// isPage reports whether the path is one of the page's files.
func isPage(p string) bool {
	p = path.Clean("/" + p)
	if p == "/" {
		return true
	}
	_, err := fs.Stat(pageFiles, "page"+p)
	return err == nil
}
