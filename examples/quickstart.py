from e2b_code_interpreter import Sandbox

agent_code = "x = 21 * 2\nx"

with Sandbox.create() as sandbox:
    result = sandbox.run_code(agent_code)
    print(result.text)
