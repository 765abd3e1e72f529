#!/usr/bin/env bash
# Puts together a CUDA 13.0 toolkit from PyPI wheels, for building feature `cuda` on a machine without one (and without a
# GPU). Prints the exports to use:
#
#     eval "$(config/deploy/cuda-toolkit.sh "$HOME/.cache/actor-node/cuda")"
#     cargo build --release --features cuda
#
# mistralrs-quant 0.8.1 accepts toolkits up to 13.2; 13.0 is what current drivers run. Where the compiler can ask a
# device, leave CUDA_COMPUTE_CAP out; here it defaults to 90 (Hopper).
set -euo pipefail
root="${1:?usage: cuda-toolkit.sh DIRECTORY}"

if [ ! -x "$root/bin/nvcc" ]; then
  mkdir -p "$root/wheels"
  python3 -m pip download --quiet --no-deps --dest "$root/wheels" \
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 \
    nvidia-cuda-runtime==13.0.96 nvidia-curand==10.4.0.35 nvidia-cublas==13.0.2.14 nvidia-cuda-nvrtc==13.0.88 >&2
  for wheel in "$root"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$root/unpacked"
  done
  # All 13.x wheels share one tree; nvcc finds its parts relative to itself.
  tree=$(dirname "$(dirname "$(find "$root/unpacked" -path '*/bin/nvcc' -print -quit)")")
  cp -a "$tree/." "$root/"
  rm -rf "$root/unpacked" "$root/wheels"
  chmod +x "$root"/bin/* "$root"/nvvm/bin/* 2>/dev/null || true
  [ -e "$root/lib64" ] || ln -s lib "$root/lib64"
  # The wheels carry libNAME.so.MAJOR; the linker looks for libNAME.so.
  for library in "$root"/lib/lib*.so.*; do
    plain="${library%%.so.*}.so"
    [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
  done
fi

# libcuda.so belongs to the driver, which such a machine lacks. This one has the names of its functions, so that programs
# link; all of them answer 100, "no device". Programs look for libcuda.so.1 when they start: it comes with the driver.
stub="$root/lib/stubs/libcuda.so"
if [ ! -e "$stub" ]; then
  mkdir -p "$root/lib/stubs"
  grep -ohE '\bcu[A-Z][A-Za-z0-9]*(_v[0-9]+)?\b' "$root/include/cuda.h" | sort -u | sed 's/.*/int &(void) { return 100; }/' |
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c -o "$stub" -
fi

"$root/bin/nvcc" --version | tail -n 2 >&2
cat <<EOF
export CUDA_HOME="$root" CUDA_PATH="$root" CUDA_ROOT="$root" CUDA_TOOLKIT_ROOT_DIR="$root"
export PATH="$root/bin:\$PATH"
export LIBRARY_PATH="$root/lib:$root/lib/stubs:\${LIBRARY_PATH:-}" LD_LIBRARY_PATH="$root/lib:\${LD_LIBRARY_PATH:-}"
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-90}"
EOF
