// `npm run generate`: types and operations from the OpenAPI document, into src/generated/api.
export default {
  input: "../../openapi.json",
  output: { path: process.env.TURNKEEP_CLIENT_OUT ?? "src/generated/api", module: { extension: ".js" } },
  plugins: [
    "@hey-api/typescript",
    { name: "@hey-api/client-fetch", throwOnError: true },
    { name: "@hey-api/sdk", responseStyle: "data", operations: { strategy: "single", containerName: "Operations" } },
  ],
};
