package web

// Routes returns the methods and paths of the page's routes.
func Routes() (all [][2]string) {
	for _, r := range (&page{}).routes() {
		all = append(all, [2]string{r.method, r.path})
	}
	return all
}
