import { defineConfig } from "vite";

// Names and content of the built files depend on the source only, so that a rebuild can be compared with what is
// committed. `DASHBOARD_OUT` is the folder of such a comparison.
export default defineConfig({
  base: "/dashboard/",
  build: {
    outDir: process.env["DASHBOARD_OUT"] ?? "../app/dashboard/built",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    sourcemap: false,
  },
  server: { proxy: { "/v1": { target: "http://127.0.0.1:8765", ws: true } } },
});
