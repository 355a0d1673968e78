// Resolves an expression of n8n: `={{ … }}`, or a text with several, where `$json` is the output of the node before.
import vm from "node:vm";

const { value, outputs, before } = JSON.parse(process.argv[2]);
const itemOf = (name) => ({ item: { json: outputs[name] } });
const context = vm.createContext({ $json: outputs[before], $: itemOf });
const run = (code) => vm.runInContext(code, context);
const resolve = (given) => {
  if (!given.startsWith("=")) return given;
  const whole = /^=\{\{((?:(?!\}\}).)*)\}\}$/s.exec(given);
  if (whole) return run(whole[1]);
  return given.slice(1).replace(/\{\{(.*?)\}\}/gs, (_, code) => run(code));
};
console.log(JSON.stringify(resolve(value)));
